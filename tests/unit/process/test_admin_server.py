"""How what is large is written: as it would be as a whole, and in pieces between which the loop has its
turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agent.base import wait
from agent.base.http import large_answers
from agent.base.metrics import Metrics
from agent.config import Admin
from agent.hub.fleet_rows import FleetRow
from agent.hub.registrar.metrics import LeafCollector
from agent.hub.registrar.status import fleet_status
from agent.hub.web import FleetPages
from agent.process.admin_server import AdminServer, _exposition, _written
from tests.harness.wait import until
from tests.unit.hub.registrar.test_status import fleet, looks

_plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
_values: st.SearchStrategy[Any] = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_values)
def test_a_status_that_is_written_in_pieces_is_what_it_would_be_as_a_whole(value: Any) -> None:
    assert b"".join(_written(value)) == msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def test_no_piece_holds_more_than_one_leaf() -> None:
    leaves = {f"edge-{number}": {"state": "flowing", "classes": {"normal": {}}} for number in range(100)}
    pieces = list(_written({"fleet": {"state": "well", "leaves": leaves}}))
    assert max(piece.count(b"flowing") for piece in pieces) == 1


FORMATS = ["text/plain", "application/openmetrics-text; version=1.0.0"]


@pytest.mark.parametrize("accept", FORMATS)
@pytest.mark.parametrize("domains", [0, 99, 100, 101, 250])
def test_metrics_that_are_written_in_pieces_are_what_they_would_be_as_a_whole(
    accept: str, domains: int
) -> None:
    Metrics()  # which has no series of when a counter was made
    registry = CollectorRegistry()
    counted = Counter("petiole_x", "Counted.", ["domain"], registry=registry)
    gauge = Gauge("petiole_y", "Shown.", ["domain"], registry=registry)
    seconds = Histogram("petiole_z", "Timed.", ["domain"], registry=registry)
    for number in range(domains):
        counted.labels(f"edge-{number}").inc(number)
        gauge.labels(f"edge-{number}").set(number)
        seconds.labels(f"edge-{number}").observe(number)
    encode, _ = choose_encoder(accept)
    pieces = list(_exposition(encode, registry.collect()))
    assert b"".join(pieces) == encode(registry)
    assert max(piece.count(b"petiole_y{") for piece in pieces) <= 100


async def answers(paths: list[str], status: Callable[[], Any], collectors: list[Collector]) -> list[bytes]:
    """What an admin server answers to those who ask at once."""
    metrics = Metrics()
    for collector in collectors:
        metrics.registry.register(collector)
    server = AdminServer(
        Admin("127.0.0.1:0"), metrics, status, lambda: (True, ""), FleetPages(status, lambda _: None)
    )
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group, ClientSession() as session:
        group.create_task(server.run(stopping))
        await until(lambda: server.address[1] != 0, "the admin server listens")

        async def ask(path: str) -> bytes:
            async with session.get(f"http://127.0.0.1:{server.address[1]}{path}") as answer:
                assert answer.status == 200
                return await answer.read()

        found = await asyncio.gather(*map(ask, paths))
        stopping.set()
    return found


@pytest.mark.parametrize(
    ("path", "most"), [("/status", 1), ("/fleet", 1), ("/fleet.json", 1), ("/metrics", 100)]
)
async def test_the_loop_has_its_turn_between_some_leaves_of_a_large_answer(
    path: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "SPAN", 0.0)  # of any length is a piece too long for one turn
    known, seen = fleet(1_000), list[int]()

    async def watch() -> None:
        while True:
            seen.append(len(looks(known)))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await answers([path], lambda: {"fleet": fleet_status(known, {}, None)}, [LeafCollector(lambda: known)])
    watching.cancel()
    assert seen[-1] == 1_001
    assert max(after - before for before, after in pairwise(seen)) <= most


@pytest.mark.parametrize("path", ["/status", "/fleet", "/fleet.json"])
async def test_many_who_ask_at_once_share_what_is_expensive(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_answers, "_CHEAP", 0.0)
    monkeypatch.setattr(large_answers, "_TIMES", 1e9)
    known, written, as_json = fleet(20), list[FleetRow](), FleetRow.as_json

    def write(row: FleetRow) -> dict[str, Any]:
        written.append(row)
        return as_json(row)

    monkeypatch.setattr(FleetRow, "as_json", write)
    found = await answers([path] * 20, lambda: {"fleet": fleet_status(known, {}, None)}, [])
    assert len(set(found)) == 1
    assert len(written) == (21 if path == "/fleet.json" else 0)
    alone = fleet(20)
    await answers([path], lambda: {"fleet": fleet_status(alone, {}, None)}, [])
    assert looks(known) == looks(alone)
