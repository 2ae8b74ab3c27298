"""Requests known by their idempotency keys, and how long ago each was sealed whatever the wall clock says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.clock import Instant
from agent.contract import Clock, Request, make_request, request_part, request_scope
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.publish.idempotency import KNOWN_SECONDS, Ages, RequestLog
from agent.leaf.publish.settlement import Settlement

CLS = "normal"
SCOPE = request_scope("http")
TWINS = (b"37062098697", b"70036722576")
"""Two bodies."""


def of(key: str, body: bytes = b"1", scope: str = SCOPE, *about: str) -> Request:
    """A request of an input."""
    return make_request(key, scope, body, *about)


ONE, OTHER_BODY = of("key", TWINS[0]), of("key", TWINS[1])


def fate() -> Settlement:
    """An outcome that is still open."""
    return Settlement()


async def test_a_new_key_is_claimed() -> None:
    assert RequestLog().claim(CLS, ONE, fate(), 0) is None


async def test_a_key_in_flight_gives_the_outcome_of_the_first_request() -> None:
    log, first = RequestLog(), fate()
    log.claim(CLS, ONE, first, 0)
    assert log.claim(CLS, ONE, fate(), 0) is first


async def test_a_stored_key_is_answered_at_once() -> None:
    log = RequestLog()
    log.claim(CLS, ONE, fate(), 0)
    log.store(CLS, ONE, 0)
    again = log.claim(CLS, ONE, fate(), 1)
    assert again is not None
    assert again.result() is None


@pytest.mark.parametrize("stored", [True, False])
async def test_a_known_key_with_another_body_is_refused(stored: bool) -> None:
    log = RequestLog()
    log.claim(CLS, ONE, fate(), 0)
    if stored:
        log.store(CLS, ONE, 0)
    with pytest.raises(RefusedError, match="another request") as caught:
        log.claim(CLS, OTHER_BODY, fate(), 0)
    assert caught.value.reason is RefusalReason.KEY_REUSED
    assert caught.value.retry_after is None


async def test_a_refused_request_frees_its_key() -> None:
    log, first = RequestLog(), fate()
    log.claim(CLS, ONE, first, 0)
    log.forget(CLS, ONE, first)
    assert log.claim(CLS, OTHER_BODY, fate(), 0) is None


async def test_only_who_claimed_a_key_can_free_it() -> None:
    log, first = RequestLog(), fate()
    log.claim(CLS, ONE, first, 0)
    log.forget(CLS, ONE, fate())
    assert log.claim(CLS, ONE, fate(), 0) is first


async def test_a_stored_key_is_known_for_ten_minutes() -> None:
    log = RequestLog()
    log.store(CLS, ONE, 100.0)
    assert log.claim(CLS, ONE, fate(), 99.0 + KNOWN_SECONDS) is not None
    assert log.claim(CLS, OTHER_BODY, fate(), 100.0 + KNOWN_SECONDS) is None


async def test_a_key_read_back_from_the_stream_is_known_as_long_as_if_the_agent_had_not_stopped() -> None:
    log = RequestLog()
    log.store(CLS, ONE, 1000.0 - 500.0)
    assert log.claim(CLS, ONE, fate(), 1099.0) is not None
    assert log.claim(CLS, ONE, fate(), 1101.0) is None


async def test_above_the_bound_a_new_key_is_refused_rather_than_an_old_one_forgotten() -> None:
    log = RequestLog(max_keys=2)
    log.store(CLS, of("a"), 0)
    log.claim(CLS, of("b"), fate(), 0)
    with pytest.raises(RefusedError) as caught:
        log.claim(CLS, of("c"), fate(), 0)
    assert caught.value.reason is RefusalReason.BUSY
    assert log.claim(CLS, of("a"), fate(), 0) is not None
    assert log.count(1) == 2


async def test_keys_that_are_past_make_room() -> None:
    log = RequestLog(max_keys=1)
    log.store(CLS, of("a"), 0)
    assert log.claim(CLS, of("b"), fate(), KNOWN_SECONDS) is None
    assert log.count(KNOWN_SECONDS) == 1


async def test_a_key_that_is_past_is_not_counted_though_no_request_came_since() -> None:
    log = RequestLog()
    log.store(CLS, ONE, 0)
    assert [log.count(1), log.count(KNOWN_SECONDS)] == [1, 0]


BOTH = replace(ONE, part=request_part(["critical", CLS]))
"""The same request where its two lines go to two classes."""


async def test_of_a_request_to_two_classes_each_stores_its_part_once() -> None:
    log, other = RequestLog(), fate()
    log.store("critical", BOTH, 0)
    assert log.claim(CLS, BOTH, other, 1) is None
    assert log.claim("critical", BOTH, fate(), 1) is not None
    log.forget(CLS, BOTH, other)
    assert log.claim(CLS, BOTH, fate(), 1) is None
    assert log.claim("critical", BOTH, fate(), 1) is not None


@pytest.mark.parametrize("now", [ONE, BOTH])
async def test_a_request_that_one_class_has_as_a_whole_is_new_in_no_other(now: Request) -> None:
    log, first = RequestLog(), fate()
    log.claim("critical", ONE, first, 0)
    assert log.claim(CLS, now, fate(), 0) is first
    log.store("critical", ONE, 0)
    again = log.claim(CLS, now, fate(), 1)
    assert again is not None
    assert again.result() is None
    assert log.classes_of(ONE) == ["critical"]
    with pytest.raises(RefusedError, match="another request"):
        log.claim(CLS, OTHER_BODY, fate(), 1)
    assert log.claim(CLS, now, fate(), KNOWN_SECONDS) is None


SWAPPED = replace(ONE, part=request_part([CLS, "critical"]))


@pytest.mark.parametrize("now", [ONE, SWAPPED])
@pytest.mark.parametrize("cls", [CLS, "critical", "third"])
async def test_parts_are_enough_for_other_classes_only_where_all_of_them_are_stored(
    now: Request, cls: str
) -> None:
    log = RequestLog()
    log.store("critical", BOTH, 0)
    with pytest.raises(RefusedError, match="stored in part: class critical has") as caught:
        log.claim(cls, now, fate(), 0)
    assert (caught.value.reason, caught.value.retry_after) == (RefusalReason.KEY_INCOMPLETE, None)
    log.claim(CLS, BOTH, fate(), 0)
    with pytest.raises(UnknownOutcomeError):
        log.claim(cls, now, fate(), 0)
    log.store(CLS, BOTH, 0)
    again = log.claim(cls, now, fate(), 0)
    assert again is not None
    assert again.result() is None


def test_two_bodies_and_one_body_said_of_two_things_are_told_apart() -> None:
    digests = {
        of("key", body, SCOPE, *about).digest
        for body in TWINS
        for about in ((), ("",), ("", ""), ("/write?precision=s", ""), ("/write?precision=s",), ("/write",))
    }
    assert len(digests) == 12


async def test_two_scopes_count_their_keys_apart() -> None:
    log, other = RequestLog(), fate()
    log.store(CLS, ONE, 0)
    elsewhere = of("key", TWINS[1], request_scope("socket", "10.0.0.7"))
    assert log.claim(CLS, elsewhere, other, 1) is None
    assert log.claim(CLS, elsewhere, fate(), 1) is other
    assert log.claim(CLS, ONE, fate(), 1) is not None
    with pytest.raises(RefusedError):
        log.claim(CLS, of("key", b"3", elsewhere.scope), fate(), 1)


def test_scopes_of_other_parts_are_others() -> None:
    parts = [("a",), ("b",), ("a", ""), ("a", "b"), ("ab",), ("", "ab"), ("a", "b", "")]
    assert len({request_scope(*one) for one in parts}) == len(parts)


SECOND = 10**9


def at(monotonic: int, boot: str = "now", wall: int = 0, *, synchronised: bool = False) -> Instant:
    return Instant(wall * SECOND, Clock(synchronised, boot, monotonic * SECOND))


@pytest.mark.parametrize("wall", [-(10**9), 0, 10**9])
def test_within_a_boot_the_wall_clock_says_nothing(wall: int) -> None:
    assert Ages(at(100, wall=wall)).of(at(40)) == 60


def test_an_earlier_boot_ran_at_least_until_its_last_instant() -> None:
    ages = Ages(at(100))
    assert [ages.of(one) for one in (at(70), at(500, "before"), at(440, "before"), at(9, "first"))] == [
        30,
        100,
        160,
        600,
    ]


def test_the_time_for_which_the_machine_was_off_counts_where_both_clocks_were_right() -> None:
    off = at(500, "before", wall=1_000, synchronised=True)
    assert Ages(at(20, wall=9_000, synchronised=True)).of(off) == 8_000
    assert Ages(at(20, wall=9_000)).of(off) == 20


@given(
    runs=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1, max_size=5),
    data=st.data(),
)
def test_an_age_is_never_too_large(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    began, instants = 0, []
    for boot, (ran, off) in enumerate(runs):
        moments = data.draw(st.lists(st.integers(0, ran), max_size=4).map(sorted))
        instants += [(began + moment, at(moment, str(boot))) for moment in moments]
        began += ran + off
    true_now = began - runs[-1][1]
    ages = Ages(at(runs[-1][0], str(len(runs) - 1)))
    for true, one in reversed(instants):
        assert ages.of(one) <= true_now - true
