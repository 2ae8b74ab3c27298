"""How work is cut into plans of Spark Connect."""

from __future__ import annotations

from hub_jobs.connect_tasks import plans

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
