"""What the benchmarks count and say: the rows of the link; what is lost and doubled among peers, and how
RELP is spoken; and months of a leaf and a registrar with a driven clock, by counts: what they keep stops
growing. Of the lake's tables `tests/unit/hub_jobs/tables/` tells it (`test_log.py`,
`test_seen.py`)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import structlog

from agent.contract import LOST_STREAMS
from agent.demo.loopback import LoopbackProxy
from agent.leaf.commands.cursor import RECENT_COMMANDS
from agent.leaf.ledger.evictions import MAX_RUNS
from agent.leaf.state import RETENTION, earlier_checkpoints
from agent.leaf.state_file import load
from bench import lines, peer_faults, telegraf
from bench.line_sides import numbered, piece
from bench.load import body
from bench.peer_faults import Outcome
from bench.peer_requests import json_array
from bench.peer_sides import Seen, Side
from bench.relink_load import Load, NotStoredError
from bench.relink_rows import OURS, Fault, Measured, rows
from bench.relink_watch import Trace
from bench.result import Row
from bench.rsyslog import Relp
from tests.harness.aged_hub import Hub
from tests.harness.aged_leaf import DOMAIN, Leaf

HUB = Fault("hub SIGKILL", "hub", 3.0)


def measured(
    side: str, caught_up: float, verified: float | None = None, link_up: float | None = 1.0
) -> Measured:
    """One fault that was mended at 0."""
    return Measured(HUB, side, 0.0, link_up, caught_up, verified, 0.01)


def row_of(found: list[Row], *words: str) -> Row:
    """The first row with these words in it."""
    return next(one for one in found if all(word in one.what for word in words))


def test_p95_of_few_rounds_is_the_slowest_and_p50_the_middle_one() -> None:
    found = rows([HUB], [measured(OURS, at, at) for at in (3.0, 1.0, 2.0)], {}, {}, "")
    assert row_of(found, "caught up after the hub's process starts", "p50").value == 2.0
    assert row_of(found, "caught up after the hub's process starts", "p95").value == 3.0


def test_a_link_is_right_when_it_is_both_caught_up_and_verified() -> None:
    found = rows([HUB], [measured(OURS, 2.0, 1.5), measured(OURS, 1.0, 1.8)], {}, {}, "")
    assert row_of(found, "verified after the hub's process starts", "p95").value == 2.0
    assert row_of(found, "verified after link-up", "p50").value == 0.8
    assert row_of(found, "compared and flowing after link-up", "p95").value == 0.8


def test_a_round_that_was_never_called_right_is_counted_and_not_left_out_in_silence() -> None:
    found = rows([HUB], [measured(OURS, 2.0, None), measured(OURS, 1.0, 1.2)], {}, {}, "")
    unsaid = row_of(found, "verified after the hub's process starts", "did not say so")
    assert (unsaid.value, unsaid.must) == (1, 0)
    assert row_of(found, "verified after the hub's process starts", "p95").value == 1.2


def test_each_alternative_stands_beside_ours() -> None:
    sides = [measured(OURS, 1.0, 1.0), measured("raw durable", 6.0), measured("raw classic", 37.0)]
    found = rows([HUB], sides, {(HUB.name, OURS): 0}, {(HUB.name, "raw durable"): 4}, "")
    beside = [
        one.against.value
        for one in found
        if one.against and ": caught up after the hub's process starts, p50" in one.what
    ]
    assert beside == [6.0, 37.0]
    doubled = row_of(found, "doubled")
    assert (doubled.value, doubled.against and doubled.against.value) == (0, 4)


def test_a_trace_tells_when_something_was_true_first() -> None:
    trace = Trace([(1.0, 10), (3.0, 20), (5.0, 30)])
    assert trace.first(lambda value: value >= 20, 0.0) == 3.0
    assert trace.first(lambda value: value >= 20, 4.0) == 4.0, "it was true already"
    assert trace.first(lambda value: value < 20, 4.0) is None


def test_each_cell_has_a_name_of_its_own_and_the_chosen_ones_have_every_figure() -> None:
    assert len({cell.name for cell in lines.ALL}) == len(lines.ALL) == 225
    assert set(lines.CHOSEN) < set(lines.ALL)
    for figures in ("rate", "round_trip", "window", "loss"):
        chosen, of_all = ({getattr(cell, figures) for cell in some} for some in (lines.CHOSEN, lines.ALL))
        assert chosen == of_all


def test_a_run_over_a_line_lasts_whole_windows() -> None:
    assert lines.Cell(100e3, 0.3, 7.0, 0.0).seconds == 48.0
    assert lines.Cell(100e3, 0.3, 60.0, 0.0).seconds == 122.0


def test_goodput_stands_beside_the_yardstick_and_each_alternative() -> None:
    cell, stored = lines.CHOSEN[5], {lines.YARDSTICK: 4_000_000, lines.PLAIN: 3_000_000, "rsync": 3_500_000}
    found = lines.rows(
        cell, {name: lines.Outcome(count, 50.0, 3_600_000, 900, 0, 2) for name, count in stored.items()}
    )
    ours = [row for row in found if row.what == f"{cell.name}: {lines.PLAIN}"]
    beside = [(row.against.what, row.goal, row.as_json()["met"]) for row in ours if row.against]
    assert beside == [(lines.YARDSTICK, 0.8, False), ("rsync", 1.0, False)]
    crossed = row_of(found, lines.PLAIN, "crossed").as_json()
    assert (crossed["times"], crossed["met"]) == (1.2, False)
    assert row_of(found, lines.PLAIN, "doubled").as_json()["met"] is False


def test_a_piece_is_told_by_its_content_and_one_that_changed_is_refused() -> None:
    pieces = [piece(number, 500) for number in (3, 4, 3)]
    assert numbered(pieces) == Counter({3: 2, 4: 1})
    with pytest.raises(ValueError, match="piece 4 is not as it was sent"):
        numbered([*pieces, pieces[1][:-1] + b"!!"])


async def nothing(_: int) -> None:
    return


def side(seen: Seen) -> Side:
    return Side("one", LoopbackProxy(0), 0, nothing, list, lambda: None, lambda: None, seen)


def test_lost_is_acknowledged_and_not_there_and_doubled_there_twice() -> None:
    seen = Seen(
        numbered=True, counts=Counter({10: 1, 11: 2, 12: 2, 14: 1}), first={10: 5.0, 11: 9.0, 14: 99.0}
    )
    load = Load(nothing, 1.0, acknowledged={9, 10, 11, 13, 14})
    # 9 is of another fault, 12 was never acknowledged, 14 only after the fault was mended.
    outcome = peer_faults.outcome(side(seen), load, range(10, 15), mended=6.0, before={10, 11, 13})
    assert outcome == Outcome(acknowledged=4, lost=1, doubled=2, seconds=3.0)


def test_each_fault_stands_beside_every_peer() -> None:
    outcomes = [Outcome(100, 0, 0, 1.0)] * 3
    rows = peer_faults.rows(outcomes, {"a": [Outcome(90, 7, 0, 2.0)] * 3, "b": outcomes})
    assert len(rows) == 18
    assert [(row.value, row.against and row.against.value) for row in rows[:2]] == [(0, 7), (0, 0)]
    assert rows[0].against is not None
    assert rows[0].against.what == "a (90 acknowledged)"


async def test_a_message_is_acknowledged_by_its_own_answer_and_none_by_a_lost_connection() -> None:
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b" "):
                command, size = (await reader.readuntil(b" ")).strip(), int(await reader.readuntil(b" "))
                received.append((await reader.readexactly(size + 1))[:-1])
                if received[-1].endswith(b"bye"):
                    return
                said = b"200 OK relp_version=0\nx=y" if command == b"open" else b"200 OK"
                writer.write(b"%brsp %d %b\n" % (head, len(said), said))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    relp = Relp(server.sockets[0].getsockname()[1])
    await asyncio.gather(*(relp.send(b"line %d" % number) for number in range(20)))
    with pytest.raises(NotStoredError):
        await relp.send(b"bye")
    await relp.send(b"again")
    assert received[-1].endswith(b"again")
    await relp.close()
    server.close()


def test_telegraf_gets_the_same_readings_as_an_array() -> None:
    lines = [json.loads(line) for line in body(10, seed=3).splitlines()]
    assert json.loads(json_array(10, seed=3)) == lines


def test_what_telegraf_needs_is_said_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telegraf, "_BUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert telegraf.built(telegraf.program) == 1
    assert "there is no Go: install" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Says nothing of the clocks that are stepped at each boot."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.configure(**before)


def test_what_a_leaf_keeps_and_says_stops_growing(tmp_path: Path) -> None:
    leaf = Leaf(tmp_path, batches=3)
    leaf.live(140)
    first = leaf.sizes()
    leaf.live(7, since=140)
    later = leaf.sizes()
    for name in ("announcement", "ledger record", "requests.log", "positions.json"):
        assert later[name] <= 1.02 * first[name], name
    assert later.keys() == first.keys(), "no run leaves a file of its own"
    state = load(tmp_path / "state.json", DOMAIN)
    assert len(state.commands_run.commands) == RECENT_COMMANDS
    assert all(len(lost) <= LOST_STREAMS for lost in state.lost.values())
    assert max(len(earlier_checkpoints(known)) for known in state.earlier.values()) <= sum(
        most for _, most in RETENTION
    )
    assert len(state.corrections) <= 64
    assert later["discards-bulk.json"] < 100 * MAX_RUNS


def test_what_the_registrar_keeps_of_a_fleet_that_is_replaced_and_restarted_stays_as_it_is() -> None:
    hub = Hub(60)
    hub.live(3)
    first = hub.sizes()
    hub.live(33)
    later = hub.sizes()
    assert later.pop("bytes of the bucket") < 1.02 * first.pop("bytes of the bucket")
    assert later.pop("bytes of its largest record") < 1.1 * first.pop("bytes of its largest record")
    assert later.pop("rates in memory") <= 5 * 60, "of a domain, of its epochs, and of three of its runs"
    first.pop("rates in memory")
    assert later == first
