from __future__ import annotations

import pytest

from agent.leaf.commands.expiry import ExpiryVerdict, Now, judge

STORED = 1_000_000.0


@pytest.mark.parametrize(
    ("expires", "wall", "synchronised", "expected"),
    [
        (None, 0.0, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 10, True, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 10, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED + 3600, True, ExpiryVerdict.EXPIRED),
        (STORED + 3600, STORED + 9999, False, ExpiryVerdict.EXPIRED),
        # A clock that was never set.
        (STORED + 3600, 0.0, False, ExpiryVerdict.UNSURE),
        (STORED + 3600, STORED - 59, False, ExpiryVerdict.RUN),
        (STORED + 3600, STORED - 61, False, ExpiryVerdict.UNSURE),
        # The hub's clock is the wrong one.
        (STORED + 3600, STORED - 7200, True, ExpiryVerdict.RUN),
        # Whatever this clock says, it was over before the hub stored it.
        (STORED - 1, 0.0, False, ExpiryVerdict.EXPIRED),
    ],
)
def test_a_command_is_judged_by_a_clock_that_may_be_wrong(
    expires: float | None, wall: float, synchronised: bool, expected: ExpiryVerdict
) -> None:
    assert judge(expires, STORED, Now(wall, synchronised)) is expected
