"""Every header with the keys of a leaf: what it makes the server, the agent, the registrar and the jobs
believe. What only a table shows is tried in rounds, beside faults (tests/faults/mixed)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import nats
import pyarrow as pa
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import DEFAULT_CLASS, aggregate, batch_subject, direct_subject, inbox_prefix
from agent.demo.plan import Member
from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.source.connection import Connection
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment, open_environment
from tests.harness.wait import wait_for
from tests.security.headers import FOREIGN, forged, not_thought_of, obeyed

KEY = "pump-1-1-1"
READING = b'{"metric": "m", "value": 1.5}'


class Tried(NamedTuple):
    """One message, and the sequence at which the leaf's stream has it; 0 where it was refused."""

    headers: Mapping[str, str]
    subject: str
    seq: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultEnvironment]:
    """A hub and a leaf, linked, and nothing that is sent."""
    with open_environment(tmp_path_factory.mktemp("headers"), Case("headers"), devices=0, direct=False) as w:
        yield w


@pytest.fixture(scope="module")
def of_device(servers: FaultEnvironment) -> list[Tried]:
    """Every header, sent with the device key."""
    names = (f"m{number}" for number in itertools.count())
    subjects = (direct_subject("edge-1", DEFAULT_CLASS, "forger", name) for name in names)
    return sent(servers.leaf.member, "device", "device", zip(forged(), subjects, strict=False))


@pytest.fixture(scope="module")
def of_agent(servers: FaultEnvironment) -> list[Tried]:
    """Every header of the contract on a batch, sent with the key of the agent itself."""
    subject = batch_subject("edge-1", DEFAULT_CLASS, "forged")
    messages = ((headers, subject) for headers in forged() if not obeyed(headers))
    return sent(servers.leaf.member, "agent", "edge-1", messages)


def sent(
    member: Member, key: str, inbox: str, messages: Iterable[tuple[Mapping[str, str], str]]
) -> list[Tried]:
    """Publish these, one after the other."""

    async def send() -> list[Tried]:
        nc = await nats.connect(
            member.nats_url,
            nkeys_seed=str(member.state / "keys" / f"{key}.nk"),
            inbox_prefix=inbox_prefix(inbox).encode(),
            error_cb=_quiet,
        )
        try:
            return [
                Tried(headers, subject, await _seq(nc, headers, subject)) for headers, subject in messages
            ]
        finally:
            await nc.close()

    return asyncio.run(send())


async def _seq(nc: Client, headers: Mapping[str, str], subject: str) -> int:
    try:
        answer = await nc.request(subject, READING, timeout=1, headers=dict(headers))
    except (NatsError, TimeoutError):
        return 0
    told: dict[str, Any] = json.loads(answer.data)
    return 0 if told.get("duplicate") else int(told.get("seq", 0))


async def _quiet(_error: Exception) -> None:
    """What may not be sent is seen by the answer that does not come."""


def at_hub(servers: FaultEnvironment) -> pa.Table:
    """What the hub's stream holds, as `ingest` takes it."""
    member, stream = servers.hub.member, aggregate(0)
    server = Server(member.nats_url, seed_file=str(member.state / "keys" / "jobs.nk"))
    with Connection(server, 30.0) as conn:
        info = stream_info(conn, stream)
        columns = list(read_columns(conn, stream, info.first_seq, info.last_seq))
    origin = StreamOrigin(stream, info.created, info.source_index)
    return pa.concat_tables([bronze_rows(one, origin) for one in columns])


def test_every_header_of_the_contract_is_tried() -> None:
    assert not_thought_of() == set()


def test_the_leaf_s_stream_obeys_no_header_that_changes_what_it_holds(of_device: list[Tried]) -> None:
    refused = [one.headers for one in of_device if not one.seq]
    assert refused == [one.headers for one in of_device if obeyed(one.headers)]


def test_a_device_s_reading_is_its_leaf_s_and_no_batch_whatever_its_headers_say(
    servers: FaultEnvironment, of_device: list[Tried]
) -> None:
    servers.mended()
    rows = {row["subject"]: row for row in at_hub(servers).to_pylist()}
    for one in (one for one in of_device if one.seq):
        row = rows.pop(one.subject)
        assert (row["domain"], row["source_seq"], row["class"]) == ("edge-1", one.seq, DEFAULT_CLASS), one
        assert (row["run"], row["n"], row["count"], row["payload"]) == (None, None, None, READING), one
    assert [subject for subject in rows if ".forger." in subject or FOREIGN in subject] == []


def test_a_batch_is_its_leaf_s_whatever_its_headers_say(
    servers: FaultEnvironment, of_agent: list[Tried]
) -> None:
    servers.mended()
    stored = {one.seq for one in of_agent if one.seq}
    rows = [row for row in at_hub(servers).to_pylist() if row["source_seq"] in stored]
    assert len(rows) == len(stored) > len(of_agent) // 2
    assert {row["domain"] for row in rows} == {"edge-1"}
    assert {row["source_stream"] for row in rows} == {f"TEL_edge-1_{DEFAULT_CLASS}"}


def test_an_agent_takes_no_request_for_stored_because_a_device_says_so(
    servers: FaultEnvironment, of_device: list[Tried]
) -> None:
    assert any(one.seq and one.headers.get("Petiole-Requests") == KEY for one in of_device)
    assert servers.leaf.end_well() == 0
    servers.leaf.start()
    before = servers.leaf.metric("petiole_stored_readings_total", input="http")
    assert servers.leaf.post(READING, KEY) == 204
    wait_for(
        lambda: servers.leaf.metric("petiole_stored_readings_total", input="http") == before + 1,
        "it is stored",
    )
    assert servers.leaf.metric("petiole_unaccounted_readings") == 0
    servers.mended()
