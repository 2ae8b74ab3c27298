"""What became of each fault, as `build/faults/report.json` tells it."""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

PATH = Path("build/faults/report.json")


@dataclass(slots=True)
class Case:
    """One fault. `expected` says what must happen, `seen` what was, in the product's own words with the
    seconds since the fault; `not_proven` what this run could not show. `sent` and `acknowledged` count
    readings, `lost` acknowledged ones that are missing at the hub, `duplicates` such as are there more than
    once. None: not measured."""

    case: str
    expected: str = ""
    passed: bool = False
    sent: int | None = None
    acknowledged: int | None = None
    lost: int | None = None
    duplicates: int | None = None
    detect_seconds: float | None = None
    recover_seconds: float | None = None
    named: int | None = None
    """Acknowledged readings that are gone, and that the audit names with a reason."""
    seen: list[str] = field(default_factory=list)
    not_proven: list[str] = field(default_factory=list)
    theme: str = ""
    """What the cases beside it have in common, in a sentence."""
    scenario: str = ""
    """What was drawn, where chance drew the faults."""
    seed: int | None = None
    """What decided the order of faults, where chance did."""
    commit: str = ""
    """What was tested, as `git describe` names it."""
    sent_again: int | None = None
    """Messages that came to a stream of the hub which held them."""
    began: float = 0.0
    """When the fault, or its mending, began, in monotonic seconds; not in the report."""

    def begins(self) -> None:
        """The fault is there from now on."""
        self.began = time.monotonic()

    def saw(self, what: str) -> float:
        """Note what was seen; returns the seconds since the fault began."""
        seconds = round(time.monotonic() - self.began, 3)
        self.seen.append(f"{seconds:.1f} s: {what}")
        return seconds


def write(case: Case) -> None:
    """Put a case into the report. The others keep what an earlier run, or one beside this, said of them."""
    row = _row(case)
    with _alone():
        _put(_earlier() | {case.case: row})


def write_new(case: Case) -> None:
    """The same of a case that was not run, which keeps what an earlier run said of it."""
    row = _row(case)
    with _alone():
        rows = _earlier()
        rows.setdefault(case.case, row)
        _put(rows)


def _row(case: Case) -> dict[str, object]:
    row = asdict(case) | {"commit": _commit()}
    del row["began"]
    return row


def _put(rows: Mapping[object, dict[str, object]]) -> None:
    PATH.write_text(json.dumps({"cases": list(rows.values())}, indent=2) + "\n")


@contextmanager
def _alone() -> Iterator[None]:
    """No other run writes the report meanwhile."""
    PATH.parent.mkdir(parents=True, exist_ok=True)
    with PATH.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _earlier() -> dict[object, dict[str, object]]:
    try:
        found: list[dict[str, object]] = json.loads(PATH.read_text())["cases"]
    except (OSError, ValueError, KeyError):
        return {}
    return {one["case"]: one for one in found}
