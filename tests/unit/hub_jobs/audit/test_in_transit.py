"""What is on its way, by what leaves announced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.contract import ClassState, FleetRecord, Previous, Readings
from hub_jobs.audit.account import Account
from hub_jobs.audit.accounts import with_announced
from hub_jobs.audit.in_transit import InTransit, in_transit_of
from hub_jobs.tables.spaces import SeenNumbers, source_space
from tests.unit.hub_jobs.rows import RUN

SOURCE = ("TEL_edge-1_normal", "abc")
SAID = Previous(RUN, 9, Readings(accepted=95, stored=90), closed=False)
STATE = ClassState("0123456789abc", "made", first=3, last=20, confirmed=0, bytes=900, ledger=SAID)


def _way(state: ClassState, held: int | None, seen: list[tuple[int, int]]) -> InTransit:
    at_hub = {} if held is None else {"normal": held}
    record = FleetRecord("edge-1", "2026-11-21T10:00:00+00:00", {"normal": state}, at_hub)
    spaces = SeenNumbers({source_space(*SOURCE): seen})
    (transit,) = in_transit_of({"edge-1": record}, spaces, {SOURCE: {("edge-1", "normal", "made")}})
    return transit


def test_what_a_leaf_holds_behind_the_last_that_came_is_on_its_way() -> None:
    transit = _way(STATE, held=14, seen=[(1, 5), (8, 10)])

    assert (transit.ranges, transit.at_hub, transit.at_leaf, transit.messages) == ([(11, 20)], 4, 6, 10)
    assert transit.stayed == [(6, 7)], "a hole before that is no way"
    first, second = transit.sentences()
    assert first.endswith(
        "on their way at 2026-11-21 10:00:00 UTC: 6 messages that only the leaf has, and 4 at the hub "
        "that no ingest has taken (sequences 11-20 of the leaf's stream)"
    )
    assert "still has sequences 6-7, which never came" in second


def test_what_a_leaf_has_of_a_class_that_it_announces_no_more_is_named() -> None:
    transit = _way(STATE, held=None, seen=[(1, 10)])

    (sentence,) = transit.sentences()
    assert "does not announce this class any more" in sentence
    assert "10 messages (sequences 11-20 of the leaf's stream)" in sentence
    assert _way(STATE, held=None, seen=[(1, 20)]).sentences() == []


def test_nothing_is_on_its_way_when_all_came_or_the_stream_is_empty() -> None:
    assert _way(STATE, held=20, seen=[(1, 20)]).sentences() == []
    assert _way(replace(STATE, first=21), held=20, seen=[]).messages == 0


def test_of_another_stream_of_that_name_nothing_came() -> None:
    assert _way(replace(STATE, created="later"), held=0, seen=[(1, 20)]).at_leaf == 18


def test_the_sources_are_gone_through_once_however_many_leaves_there_are() -> None:
    class Counted(dict[tuple[str, str], set[tuple[str, str, str]]]):
        count = 0

        def items(self) -> Any:
            self.count += 1
            return super().items()

    names = [f"edge-{at}" for at in range(3)]
    origins = Counted({(f"TEL_{name}", "abc"): {(name, "normal", "made")} for name in names})
    leaves = {name: FleetRecord(name, "2026-11-21T10:00:00+00:00", {"normal": STATE}, {}) for name in names}

    found = in_transit_of(leaves, SeenNumbers({source_space("TEL_edge-1", "abc"): [(1, 20)]}), origins)

    assert [transit.messages for transit in found] == [18, 0, 18]
    assert origins.count == 1


@pytest.mark.parametrize(
    ("said", "flows", "due"),
    [(SAID.readings, True, 30), (SAID.readings, False, 0), (None, True, None), (None, False, 0)],
)
def test_the_readings_on_their_way_are_what_is_nowhere_else(
    said: Readings | None, flows: bool, due: int | None
) -> None:
    account = Account("edge-1", "normal", RUN, 60, 60, 50, 0, 50, 0, 4, 0, 6, 0, 0)

    found = with_announced(account, said, flows=flows)

    assert found.on_the_way == due
    if due:
        assert (found.accepted, found.stored, found.open_tail) == (95, 90, 5)
        assert found.stored == found.in_bronze + found.missing + found.discarded + due


def test_what_a_leaf_announced_is_no_more_than_the_least_that_is_known() -> None:
    """An announcement may be older than a ledger record that came, and of a run that has ended it is."""
    account = Account("edge-1", "normal", RUN, 100, 95, 95, 0, 95, 0, 0, 0, 0, 0, 5)

    found = with_announced(account, SAID.readings, flows=True)

    assert (found.accepted, found.stored, found.open_tail, found.on_the_way) == (100, 95, 5, 0)


def test_what_was_refused_or_dead_is_not_in_the_open_tail() -> None:
    account = Account("edge-1", "normal", RUN, 60, 50, 50, 0, 50, 0, 0, 0, 0, 0, 10)
    said = Readings(accepted=95, stored=80, refused=7, dead=4)

    assert with_announced(account, said, flows=True).open_tail == 4


def test_with_batches_that_no_link_will_bring_it_is_not_known_how_much_is_on_its_way() -> None:
    account = Account("edge-1", "normal", RUN, 60, 60, 50, 0, 50, 0, 4, 0, 6, 0, 0)

    found = with_announced(account, SAID.readings, flows=True, unheard=True)

    assert (found.stored, found.on_the_way) == (90, None)
