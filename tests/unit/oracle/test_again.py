"""What the oracle counts as sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.faults.oracle.again import SentAgain, sent_again

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def row(number: int, at: float, **given: Any) -> dict[str, Any]:
    return {
        "stream": "TELEMETRY_0",
        "created": "made",
        "message_id": None,
        "source_stream": "TEL_edge-1_normal",
        "source_identity": "abc",
        "source_seq": number,
        "digest": b"%d" % number,
        "arrived": NOON + timedelta(seconds=at),
        **given,
    }


def test_a_message_that_came_twice_counts_once_and_the_bound_is_what_comes_in_25_seconds() -> None:
    came = [row(number, number) for number in range(61)]
    assert sent_again(came) == SentAgain(0, 25)
    assert sent_again([*came, row(59, 70.0), row(60, 70.1), row(60, 70.2)]) == SentAgain(3, 25)


def test_another_message_under_the_same_sequence_is_none_that_came_again() -> None:
    assert sent_again([row(1, 0), row(1, 1, digest=b"other")]).messages == 0


def test_a_batch_is_the_same_under_another_sequence() -> None:
    assert (
        sent_again([row(1, 0, message_id="run-normal-1"), row(2, 1, message_id="run-normal-1")]).messages == 1
    )


def test_a_stream_of_the_hub_that_was_made_again_had_nothing() -> None:
    assert sent_again([row(1, 0), row(1, 1, created="later")]).messages == 0


def test_where_all_came_in_less_the_bound_is_all_of_it() -> None:
    assert sent_again([row(1, 0), row(2, 1), row(2, 2)]) == SentAgain(1, 2)
    assert sent_again([]) == SentAgain(0, 0)
