"""How work is cut into plans of Spark Connect, and for how long a server that does not answer is asked."""

from __future__ import annotations

from pyspark.sql.connect.client.retries import DefaultPolicy

from hub_jobs.spark.connect_tasks import RETRIES, plans

MIB = 1 << 20


def test_a_plan_takes_pieces_in_order_up_to_its_size_and_a_larger_one_alone() -> None:
    pieces = [b"a" * MIB, b"b" * 3 * MIB, b"c", b"d" * 9 * MIB, b"e", b"f"]
    assert [[piece[:1] for piece in plan] for plan in plans(pieces)] == [
        [b"a", b"b"],
        [b"c"],
        [b"d"],
        [b"e", b"f"],
    ]
    assert list(plans([])) == []


def test_a_server_that_does_not_answer_is_asked_for_about_twenty_seconds() -> None:
    state = DefaultPolicy(**RETRIES).to_state()
    waits = list(iter(state.next_attempt, None))
    assert 15_000 < sum(map(int, waits)) < 25_000
