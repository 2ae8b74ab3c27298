from __future__ import annotations

import pytest

from agent.leaf.commands.expiry import Now, Verdict, judge

STORED = 1_000_000.0


@pytest.mark.parametrize(
    ("expires", "wall", "synchronised", "expected"),
    [
        (None, 0.0, False, Verdict.RUN),
        (STORED + 3600, STORED + 10, True, Verdict.RUN),
        (STORED + 3600, STORED + 10, False, Verdict.RUN),
        (STORED + 3600, STORED + 3600, True, Verdict.EXPIRED),
        (STORED + 3600, STORED + 9999, False, Verdict.EXPIRED),
        # A clock that was never set.
        (STORED + 3600, 0.0, False, Verdict.UNSURE),
        (STORED + 3600, STORED - 59, False, Verdict.RUN),
        (STORED + 3600, STORED - 61, False, Verdict.UNSURE),
        # The hub's clock is the wrong one.
        (STORED + 3600, STORED - 7200, True, Verdict.RUN),
        # Whatever this clock says, it was over before the hub stored it.
        (STORED - 1, 0.0, False, Verdict.EXPIRED),
    ],
)
def test_a_command_is_judged_by_a_clock_that_may_be_wrong(
    expires: float | None, wall: float, synchronised: bool, expected: Verdict
) -> None:
    assert judge(expires, STORED, Now(wall, synchronised)) is expected
