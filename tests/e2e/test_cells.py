"""The leaves of a hub in cells: accounts of its server, each with aggregates and commands of its own, which
are one fleet to the registrar and to the jobs; and a running hub whose leaves move into further ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.config.keys import make_key
from agent.contract import H_MESSAGE_ID, cell_api
from agent.jetstream import JetStream
from agent.jetstream.info import headers_of
from hub_jobs.source.connection import Connection
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from hub_jobs.tables.hub_lake import known_aggregates
from tests.e2e.test_growing_fleet import added, newcomer, reaches, sending
from tests.harness.agent_process import PETIOLE, Agent, hub_and_leaf
from tests.harness.hub_machines import answered, connected_to, hubs_and_leaf
from tests.harness.wait import SERVER_RETRY_SECONDS, WAIT_SECONDS, until, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
ONE_EACH = "[registrar]\ncell_leaves = 1\n"
CELLS = ["TELEMETRY_0", "TELEMETRY_1_0", "TELEMETRY_2_0"]


class Fleet:
    """A hub and three leaves, all with their agents."""

    def __init__(self, hub: Agent, leaves: list[Agent]) -> None:
        self.hub, self.leaves = hub, leaves

    def configure(self, old: str, new: str) -> None:
        """Change the hub's file, which its agent does not read yet."""
        file = self.hub.member.config
        file.write_text(file.read_text().replace(old, new))

    def placed(self) -> list[str]:
        """The aggregates that take the leaves."""
        rows = self.hub.status()["fleet"]["leaves"].values()
        return sorted(row["classes"]["normal"]["stream"] for row in rows if row.get("classes"))

    def ids(self) -> dict[str, Counter[str]]:
        """The ids of the batches that the jobs read of each aggregate, and how often."""
        server = Server(
            f"nats://127.0.0.1:{self.hub.member.nats_port}", str(self.hub.member.state / "keys" / "jobs.nk")
        )
        with Connection(server) as conn:
            names = known_aggregates(conn)
        found = {}
        for name in names:
            with Connection(replace(server, api_prefix=cell_api(name))) as conn:
                info = stream_info(conn, name)
                parts = list(read_columns(conn, name, info.first_seq, info.last_seq))
            ids = [
                headers_of(raw).get(H_MESSAGE_ID, "") for part in parts for raw in part.headers.to_pylist()
            ]
            found[name] = Counter(ident for ident in ids if "-ledger-" not in ident)
        return found

    def arrived(self) -> None:
        """Wait until all that the leaves have stored is at the hub."""
        wait_for(
            lambda: all(reaches(self.hub, leaf) for leaf in self.leaves), "their readings are at the hub"
        )

    def answers(self, leaf: Agent) -> bool:
        """Whether a leaf answers a command, which expires in an hour."""
        wait = ("--wait", f"{SERVER_RETRY_SECONDS}s")
        ping = ("command", leaf.member.domain, "ping", "--expires", "1h", *wait)
        ended = self.hub.petiole(*ping, seconds=SERVER_RETRY_SECONDS)
        return ended.returncode == 0


@contextmanager
def fleet(directory: Path, limit: str = "") -> Iterator[Fleet]:
    """Running, and all leaves flow; each was let in while the hub ran."""
    with hub_and_leaf(directory, http_only=True) as (hub, leaf), ExitStack() as stack:
        text = hub.member.config.read_text()
        hub.member.config.write_text(text.replace("[registrar]\n", limit or "[registrar]\n"))
        port = text.partition('leaf_listen = "127.0.0.1:')[2].partition('"')[0]
        hub.start()
        leaf.start()
        leaves = [leaf]
        for domain in ("edge-2", "edge-3"):
            new, printed = newcomer(leaf, domain, port)
            stack.callback(new.close)
            added(hub, printed, leaf.member.directory)
            new.start()
            leaves.append(new)
        wait_for(lambda: all(map(_flows, leaves)), "they flow")
        yield Fleet(hub, leaves)


def _flows(leaf: Agent) -> bool:
    return bool(leaf.status()["link"]["state"] == "flowing")


def test_leaves_that_are_let_in_fill_cells_and_are_one_fleet_to_people_and_jobs(tmp_path: Path) -> None:
    with fleet(tmp_path, ONE_EACH) as all_of:
        hub = all_of.hub
        for number, leaf in enumerate(all_of.leaves):
            for _ in range(number + 1):
                assert leaf.post(READING, f"{number}-{_}") == 204
        for leaf in all_of.leaves:
            assert all_of.answers(leaf)
        all_of.arrived()
        assert all_of.placed() == CELLS
        assert {name: len(ids) for name, ids in all_of.ids().items()} == dict(
            zip(CELLS, (2, 3, 4), strict=True)
        ), "each leaf's batches, and its answer to a command, are in its own cell"

        seed = tmp_path / "app.nk"
        ended = hub.petiole("user", "add", "app", make_key(seed), "--reads", CELLS[2])
        assert ended.returncode == 0, ended
        assert hub.petiole("status", "--consumers").stdout.count("user-app") == 1

        ended = hub.petiole("fleet", "forget", "edge-3")
        assert ended.returncode == 0, ended
        assert "cell = 2" in hub.member.config.read_text()
        assert set(all_of.ids()) == set(CELLS), "what it sent can still be read"


@pytest.mark.parametrize("killed", ["agent", "server"])
def test_leaves_move_into_cells_and_nothing_is_lost_or_all_of_it_sent_again(
    tmp_path: Path, killed: str
) -> None:
    with fleet(tmp_path) as all_of, ExitStack() as stack:
        leaves = all_of.leaves
        assert all_of.placed() == [CELLS[0]] * 3
        assert all_of.answers(leaves[2])  # its command has not expired
        senders = [stack.enter_context(sending(leaf)) for leaf in leaves]
        for sender in senders:
            sender.sends(10)
        wait_for(
            lambda: all(leaf.status()["classes"]["normal"]["confirmed"] > 1 for leaf in leaves),
            "it is confirmed",
        )

        all_of.configure("[registrar]\n", ONE_EACH)
        _split(all_of, killed)
        wait_for(lambda: all_of.placed() == CELLS, "two have moved")
        for sender in senders:
            sender.sends(10)
        stack.close()
        all_of.arrived()

        ids = all_of.ids()
        everything = Counter[str]()
        for found in ids.values():
            everything.update(set(found))
        for leaf, sender in zip(leaves, senders, strict=True):
            run = leaf.status()["run"]
            stored = {ident for ident in everything if ident.startswith(f"{run}-normal-")}
            assert (len(stored) >= sender.stored, sender.refused) == (True, 0)
        for cell, sender in ((CELLS[1], senders[1]), (CELLS[2], senders[0])):
            assert len(ids[cell]) < sender.stored, "what was confirmed does not come again"
        assert all(all_of.answers(leaf) for leaf in leaves)


def _split(all_of: Fleet, killed: str) -> None:
    """Move the leaves, and kill a part of the hub as soon as the file says where they go."""
    hub = all_of.hub
    command = [PETIOLE, "fleet", "split", "-c", str(hub.member.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as splitting:
        wait_for(lambda: "cell = " in hub.member.config.read_text(), "the file says it")
        server = hub.server()
        if killed == "agent":
            hub.end(signal.SIGKILL)
            hub.start()
        elif killed == "server":
            assert server is not None
            os.kill(server, signal.SIGKILL)
        said, _ = splitting.communicate(timeout=WAIT_SECONDS)
    assert "edge-3" in said, "it stays"
    assert killed == "agent" or splitting.returncode == 0, said


async def test_three_machines_lead_the_cells_one_after_the_other(tmp_path: Path) -> None:
    async with hubs_and_leaf(tmp_path, cell=1) as (hubs, leaf):
        first = hubs.leader()
        jobs = await connected_to(hubs, "jobs", next(name for name in hubs.agents if name != first))
        js = JetStream(jobs, cell_api(CELLS[1]))

        async def holds(count: int) -> bool:
            return (await js.stream_info(CELLS[1])).messages == count

        await leaf.store(5)
        await until(partial(holds, 5), "the cell has them")
        hubs.kill(first)
        await asyncio.to_thread(hubs.leader, first)
        await until(partial(answered, leaf), "the leaf is answered")
        await leaf.store(5)
        await until(partial(holds, 10), "the cell has these, too")
        await jobs.close()
