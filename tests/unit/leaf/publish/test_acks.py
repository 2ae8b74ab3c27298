"""Reading the answers of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.intake import RefusalReason
from agent.leaf.publish.batch import NO_STREAM, NotStored, StoredAck, parse_ack


def refusal(err_code: int) -> bytes:
    """An error as nats-server 2.15.1 writes it."""
    return b'{"error":{"code":503,"err_code":%d,"description":"why"},"stream":"S","seq":0}' % err_code


def test_a_puback_gives_the_sequence() -> None:
    assert parse_ack(b'{"stream":"TEL_a_normal","domain":"a","seq":7}') == StoredAck(7, duplicate=False)


def test_a_puback_of_a_repeat_says_so() -> None:
    assert parse_ack(b'{"stream":"S","seq":7,"duplicate":true}') == StoredAck(7, duplicate=True)


def test_no_answer_of_a_stream_is_told_apart() -> None:
    assert parse_ack(b"") == NotStored(NO_STREAM, None)


@pytest.mark.parametrize("err_code", [10002, 10023, 10047, 10077])
def test_a_stream_or_disk_without_room_is_full(err_code: int) -> None:
    assert parse_ack(refusal(err_code)) == NotStored(f"why (error {err_code})", RefusalReason.FULL)


@pytest.mark.parametrize("err_code", [10054, 10097])
def test_a_message_that_will_never_fit_is_too_large(err_code: int) -> None:
    assert parse_ack(refusal(err_code)) == NotStored(f"why (error {err_code})", RefusalReason.TOO_LARGE)


@pytest.mark.parametrize("err_code", [0, 10008, 10076, 99999])
def test_any_other_error_may_pass(err_code: int) -> None:
    answer = parse_ack(refusal(err_code))
    assert isinstance(answer, NotStored)
    assert answer.reason is None


@pytest.mark.parametrize(
    "data", [b"+OK", b"[]", b'{"stream":"S"}', b'{"seq":"7"}', b'{"seq":-1}', b"\xff", b'{"stream":"\xff"}']
)
def test_what_is_no_puback_stores_nothing(data: bytes) -> None:
    answer = parse_ack(data)
    assert isinstance(answer, NotStored)
    assert answer.reason is None


@given(st.binary(max_size=200))
def test_no_answer_breaks_the_reader(data: bytes) -> None:
    parse_ack(data)
