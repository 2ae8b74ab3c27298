"""Requests known by their idempotency keys."""

from __future__ import annotations

import asyncio

import pytest

from agent.contract import Request
from agent.intake import Reason, RefusedError
from agent.requests import KNOWN_SECONDS, RequestLog, Settled

CLS = "normal"
ONE = Request("key", 1)
OTHER_BODY = Request("key", 2)


def fate() -> Settled:
    """An outcome that is still open."""
    return asyncio.get_running_loop().create_future()


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
    with pytest.raises(RefusedError, match="another body") as caught:
        log.claim(CLS, OTHER_BODY, fate(), 0)
    assert caught.value.reason is Reason.KEY_REUSED
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
    log.store(CLS, Request("a", 0), 0)
    log.claim(CLS, Request("b", 0), fate(), 0)
    with pytest.raises(RefusedError) as caught:
        log.claim(CLS, Request("c", 0), fate(), 0)
    assert caught.value.reason is Reason.BUSY
    assert log.claim(CLS, Request("a", 0), fate(), 0) is not None
    assert log.count(1) == 2


async def test_keys_that_are_past_make_room() -> None:
    log = RequestLog(max_keys=1)
    log.store(CLS, Request("a", 0), 0)
    assert log.claim(CLS, Request("b", 0), fate(), KNOWN_SECONDS) is None
    assert log.count(KNOWN_SECONDS) == 1


async def test_a_key_that_is_past_is_not_counted_though_no_request_came_since() -> None:
    log = RequestLog()
    log.store(CLS, ONE, 0)
    assert [log.count(1), log.count(KNOWN_SECONDS)] == [1, 0]


async def test_what_is_stored_of_a_request_in_one_class_is_new_in_another() -> None:
    log, other = RequestLog(), fate()
    log.store("critical", ONE, 0)
    assert log.claim(CLS, ONE, other, 1) is None
    assert log.claim("critical", ONE, fate(), 1) is not None
    log.forget(CLS, ONE, other)
    assert log.claim(CLS, ONE, fate(), 1) is None
    assert log.claim("critical", ONE, fate(), 1) is not None
