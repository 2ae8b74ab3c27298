"""A stream on three servers, of which one has lost a part of its copy, or is down."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Unreachable, WireError
from hub_jobs.source.server import Server
from tests.harness.stream_records import read_range
from tests.harness.wait import wait_for
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

KEPT = [*range(1, 195), 300]
"""What is not deleted; a block holds about 95 messages, fewer than are."""
_CLUSTER = """
server_name: {name}
cluster {{ name: hub, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class Cluster:
    """Three servers, and the stream S."""

    def __init__(self, directory: Path) -> None:
        ports = {name: free_port() for name in "abc"}
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports.values())
        self.directory = directory
        self.servers = {
            name: PlainServer(directory / name, _CLUSTER.format(name=name, port=port, routes=routes))
            for name, port in ports.items()
        }

    def connect(self) -> Connection:
        return Connection(Server(",".join(server.url for server in self.servers.values())))

    def info(self) -> dict[str, Any]:
        """What the stream's leader says of it, with its name in `cluster`, nothing while there is none."""
        try:
            with self.connect() as conn:
                return conn.api("STREAM.INFO.S")
        except WireError:
            return {"cluster": {}, "state": {}}

    def replicas(self, key: str) -> dict[str, bool]:
        return {each["name"]: bool(each.get(key)) for each in self.info()["cluster"].get("replicas") or []}

    def whole(self) -> bool:
        return [*self.replicas("current").values()] == [True, True]

    def read(self) -> list[int]:
        with self.connect() as conn:
            read = read_range(conn, "S", 1, 300, allow_lost=True, ask_copies=True)
            return [record.seq for records in read for record in records]

    def refusal(self) -> str:
        """Why a read fails; nothing of one that does not, which is whole."""
        try:
            assert self.read() == KEPT
        except Unreachable as error:
            return str(error)
        return ""

    def leads(self, name: str) -> bool:
        """Whether a server leads, which is asked for where another one does."""
        if self.info()["cluster"].get("leader") == name:
            return True
        with suppress(WireError), self.connect() as conn:  # another election may be under way
            conn.api("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": name}})
        return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Of 300 messages 105, which follow on one another, are deleted; three servers are current."""
    found = Cluster(tmp_path)
    servers = found.servers.values()

    def made() -> bool:
        try:
            with found.connect() as conn:
                make_stream(conn, "S", num_replicas=3, discard="new", max_bytes=127_000)
        except WireError:  # the servers do not know each other yet
            return False
        return True

    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(PlainServer.start, servers))
        wait_for(made, "the stream is made")
        for subject, count in (("S.a", 194), ("S.gone", 105), ("S.a", 1)):
            fill(found.servers["a"], subject, [b"x" * 300] * count)
        with found.connect() as conn:
            conn.api("STREAM.PURGE.S", {"filter": "S.gone"})
        wait_for(found.whole, "three servers are current")
        yield found
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("number", [0, 1])
def test_what_another_copy_has_is_not_lost_though_more_is_deleted(cluster: Cluster, number: int) -> None:
    assert cluster.read() == KEPT
    before = str(cluster.info()["cluster"]["leader"])
    cluster.servers[before].signal(signal.SIGKILL)
    blocks = (cluster.directory / before).glob("store/**/streams/S/msgs/*.blk")
    block = sorted(blocks, key=lambda path: int(path.stem))[number]
    with block.open("r+b") as file:
        file.write(b"\xff" * 64)
    block.with_name("index.db").unlink(missing_ok=True)
    cluster.servers[before].start()
    wait_for(cluster.whole, "three servers are current")
    wait_for(lambda: cluster.leads(before), "the server with the damaged copy leads")
    assert cluster.info()["state"]["messages"] < len(KEPT)
    wait_for(lambda: f"{before} lacks records in" in cluster.refusal(), "a read of the damaged copy fails")


def test_what_a_server_that_is_down_may_have_is_not_lost(cluster: Cluster) -> None:
    name = next(iter(cluster.replicas("current")))
    cluster.servers[name].signal(signal.SIGTERM)
    wait_for(lambda: cluster.replicas("offline").get(name, False), f"{name} is offline")
    said: list[str] = []

    def is_said() -> bool:
        said.append(cluster.refusal())
        return f"{name}, which may have them, is offline: start it" in said[-1]

    wait_for(is_said, f"a read fails since {name} is offline")
    assert all(said)
    cluster.servers[name].stop()
    cluster.servers[name].start()
    wait_for(cluster.whole, "three servers are current")
    assert cluster.read() == KEPT
