"""Every header with the keys of a leaf: what it makes the server, the agent, the registrar and the jobs
believe. What only a table shows is tried in rounds, beside faults (tests/faults/mixed)."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

import nats
import pyarrow as pa
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import DEFAULT_CLASS, aggregate, batch, batch_subject, direct_subject, inbox_prefix
from agent.demo.plan import Member
from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.source.connection import Connection
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment, open_environment
from tests.harness.wait import wait_for

STREAM: Final = "TEL_edge-1_normal"
FOREIGN: Final = "edge-9"
_PETIOLE: Final[Mapping[str, tuple[str, ...]]] = {
    "Petiole-Version": ("0", "1", "99", "x"),
    "Petiole-Count": ("0", "-1", "1", "35", "2147483648", "9" * 40, "x"),
    "Petiole-Sealed-At": ("0", "1", "9" * 19, "x"),
    "Petiole-Clock": ("yes", "{}", "1"),
    "Petiole-Position": ("{}", "[]", "x", '{"v":1}'),
    "Petiole-Requests": ("pump-1-1-1", "pump-1-1-1:10:0", "[]", f"{'0' * 32}.{'0' * 16}:1", "x" * 4096),
    "Petiole-Resent": ("1", "9" * 19, "x"),
    "Content-Type": ("application/x-ndjson", "x"),
    "Content-Encoding": ("zstd", "gzip", "x"),
    "Nats-Msg-Id": (f"{'0' * 8}-0000-7000-8000-{'0' * 12}-normal-1", "x"),
    "Nats-Stream-Source": (
        f"TEL_{FOREIGN}_normal 1 > > tel.{FOREIGN}.normal.a.b 0",
        f"{STREAM} 9999999 > > tel.edge-1.normal.a.b 0",
        "x",
    ),
}
"""Values of each header of the contract."""
SERVER: Final[tuple[Mapping[str, str], ...]] = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-TTL": "never"},
    {"Nats-Expected-Stream": "TELEMETRY_0"},
    {"Nats-Expected-Stream": STREAM},
    {"Nats-Expected-Last-Sequence": "1"},
    {"Nats-Expected-Last-Subject-Sequence": "1"},
    {"Nats-Expected-Last-Subject-Sequence": "1", "Nats-Expected-Last-Subject-Sequence-Subject": "tel.>"},
    {"Nats-Expected-Last-Msg-Id": "x"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "tel.edge-1.normal.x.y"},
    {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tel.edge-1.normal._batch.http"},
    {"Nats-Scheduler": "x", "Nats-Schedule-Next": "purge"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Counter-Sources": "{}"},
    {"Nats-Marker-Reason": "MaxAge"},
    {"Nats-Required-Api-Level": "999"},
    {"Nats-Stream": "TELEMETRY_0", "Nats-Sequence": "1", "Nats-Subject": f"tel.{FOREIGN}.normal.a.b"},
    {"Nats-Num-Pending": "0", "Nats-Last-Sequence": "9999999", "Status": "404"},
    {"Nats-Response-Type": "error"},
    {"Nats-Trace-Dest": "tel.edge-1.normal._batch.http"},
    {"Nats-Trace-Dest": "tel.edge-1.normal._ledger", "Nats-Trace-Only": "true"},
    {"Nats-Trace-Dest": "petiole.v1.verify.edge-1"},
    {"Nats-Trace-Dest": "$JS.API.STREAM.PURGE.TEL_edge-1_normal"},
    {"Nats-Msg-Size": "0"},
)
"""Headers that nats-server reads, as it is known to."""


_OBEYED: Final = {
    *("Nats-Stream-Source", "Nats-Rollup", "Nats-TTL", "Nats-Schedule", "Nats-Scheduler", "Nats-Batch-Id"),
    *("Nats-Incr", "Nats-Trace-Dest", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id"),
    "Nats-Expected-Last-Subject-Sequence",
}


def obeyed(headers: Mapping[str, str]) -> bool:
    """Whether a stream of a leaf, or its server, refuses a message because of these: they would have it do
    something, or expect of it what is not so."""
    return bool(_OBEYED & headers.keys()) or headers.get("Nats-Expected-Stream", STREAM) != STREAM


def of_contract(module: ModuleType = batch) -> set[str]:
    """The headers that the contract names."""
    return {
        value
        for name, value in inspect.getmembers(module)
        if name.startswith("H_") and isinstance(value, str)
    }


def forged() -> Iterator[Mapping[str, str]]:
    """One message each; those of the contract also in another spelling, as a server compares them in places
    without case."""
    for name in sorted(of_contract() | {*_PETIOLE}):
        for value in _PETIOLE.get(name, ("x",)):
            yield {name: value}
            yield {name.lower(): value}
    yield from SERVER


def not_thought_of() -> set[str]:
    """Headers of the contract for which no value is tried."""
    return of_contract() - {*_PETIOLE}


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
    """Publish these, in order."""

    async def send() -> list[Tried]:
        nc = await nats.connect(
            member.nats_url,
            nkeys_seed=str(member.state / "keys" / f"{key}.nk"),
            inbox_prefix=inbox_prefix(inbox).encode(),
            error_cb=_quiet,
        )
        try:
            tried = list(messages)
            # At once, so that all are waited for together that get no answer.
            seqs = await asyncio.gather(*(_seq(nc, headers, subject) for headers, subject in tried))
            return [Tried(*one, seq) for one, seq in zip(tried, seqs, strict=True)]
        finally:
            await nc.close()

    return asyncio.run(send())


async def _seq(nc: Client, headers: Mapping[str, str], subject: str) -> int:
    try:
        answer = await nc.request(subject, READING, timeout=10, headers=dict(headers))
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
