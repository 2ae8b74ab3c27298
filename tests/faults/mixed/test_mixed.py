"""Two faults that overlap: drawn by a seed, with the moment at which they meet and what flows meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mixed.covering import scenario
from tests.faults.mixed.dimensions import Fault
from tests.faults.mixed.rounds import may_be_gone, play
from tests.faults.report import Case
from tests.faults.tools.disk import missing


def test_round(tmp_path: Path, case: Case, spark: object, seed: int) -> None:
    drawn = scenario(seed)
    case.seed, case.scenario = seed, str(drawn)
    case.expected = "what was in the only copy is named" if may_be_gone(drawn) else "nothing lost or doubled"
    print(f"\nSEED={seed}: {drawn}")
    if drawn.has(Fault.DISK_FULL) and (why := missing()):
        pytest.skip(why)
    play(tmp_path, case, drawn)
