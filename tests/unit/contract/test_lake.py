"""Which lake is the hub's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.contract import (
    NEW_LAKE,
    Adoption,
    ContractError,
    HubLake,
    adopted,
    other_lake,
    parse_adoption,
    reported,
    stored_lake,
)

FIRST, SECOND = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
NOW = datetime(2026, 11, 28, tzinfo=UTC)
KNOWN = HubLake(FIRST, "/srv/lake on hub-1", "2026-11-28T00:00:00+00:00", {"T": ("made", 5)})


def test_the_first_lake_becomes_the_hubs_and_every_other_is_refused_with_the_way_out() -> None:
    assert other_lake(None, "", "/lake") is None
    assert other_lake(None, FIRST, "/lake") is None
    assert other_lake(KNOWN, FIRST, "/elsewhere") is None
    said = str(other_lake(KNOWN, SECOND, "/lake"))
    assert f"the lake at /lake is {SECOND}, and the hub's lake is {KNOWN}" in said
    assert f"petiole lake adopt {SECOND} --instead-of {FIRST}" in said
    said = str(other_lake(KNOWN, "", "/lake"))
    assert "there is no lake at /lake" in said
    assert f"petiole lake adopt new --instead-of {FIRST}" in said


def test_a_report_never_goes_back_in_one_stream_and_does_in_one_that_was_made_again() -> None:
    for done, known in ((7, 7), (3, 5)):
        after = reported(KNOWN, FIRST, "/lake", NOW, "T", ("made", done))
        assert after.streams == {"T": ("made", known)}
    assert reported(KNOWN, FIRST, "/lake", NOW, "T", ("again", 1)).streams == {"T": ("again", 1)}
    assert reported(KNOWN, FIRST, "/lake", NOW, "U", ("made", 1)).streams == {
        **KNOWN.streams,
        "U": ("made", 1),
    }


def test_an_adopted_lake_begins_without_reports_and_what_the_other_had_is_remembered() -> None:
    after = adopted(KNOWN, Adoption(SECOND, FIRST), NOW)
    assert (after.id, after.streams, after.left) == (SECOND, {}, KNOWN.streams)
    after = reported(after, SECOND, "/lake", NOW, "T", ("made", 2))
    assert (after.streams, after.left) == ({"T": ("made", 2)}, KNOWN.streams)
    again = adopted(after, Adoption(FIRST, SECOND), NOW)
    assert again.left == KNOWN.streams, "the higher report of a stream stays"


def test_the_lake_that_is_replaced_must_be_the_hubs() -> None:
    with pytest.raises(ContractError, match=f"the hub's lake is {FIRST}"):
        adopted(KNOWN, Adoption(SECOND, SECOND), NOW)
    with pytest.raises(ContractError, match="knows no lake yet"):
        adopted(None, Adoption(SECOND, FIRST), NOW)
    with pytest.raises(ContractError, match="the id of a lake"):
        parse_adoption(Adoption("../lake", FIRST).encode())


def test_after_a_new_lake_was_adopted_any_lake_may_come_and_stays() -> None:
    awaited = adopted(KNOWN, Adoption(NEW_LAKE, FIRST), NOW)
    assert other_lake(awaited, "", "/lake") is None
    after = reported(awaited, SECOND, "/lake", NOW, "T", ("made", 1))
    assert after.id == SECOND
    assert other_lake(after, FIRST, "/lake") is not None


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"v":9}', b'{"v":1,"id":1}'])
def test_a_record_that_cannot_be_read_lets_no_lake_pass_and_can_be_replaced(data: bytes) -> None:
    known = stored_lake(data)
    assert known is not None
    for lake in ("", FIRST):
        assert "can't be read" in str(other_lake(known, lake, "/lake"))
    assert adopted(known, Adoption(FIRST, known.id), NOW).id == FIRST
    assert stored_lake(b"") is None
