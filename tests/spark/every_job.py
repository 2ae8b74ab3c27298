"""What the jobs that read tables by Spark do with one lake, so that two kinds of session can be compared."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest

from hub_jobs.audit import run as audit
from hub_jobs.audit.rows import scan
from hub_jobs.gaps import hear
from hub_jobs.gaps import run as gaps
from hub_jobs.replay import run as replay
from hub_jobs.rollup import run as rollup

_REPLAY: Final = ("--stream", "TELEMETRY_0", "--from-seq", "1")
_WINDOW: Final = ("--from", "2026-11-10T00:00:00Z")


def run_all(lake: Path) -> list[tuple[str, int, str, str, Any]]:
    """Name, exit code, standard output, what it said, and the report of each job, one after the other."""
    report = lake.with_suffix(".json")
    audited = ("--json", str(report))
    done = []
    for name, job, arguments in (
        ("audit", audit, ("--deep", "--all", *audited)),
        ("replay", replay, _REPLAY),
        ("rollup", rollup, ("--quantiles",)),
        ("gaps", gaps, (*_WINDOW, *audited)),
    ):
        report.unlink(missing_ok=True)
        out, said = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
            for reading in (scan, hear):  # however small the tables are, Spark counts them
                patch.setattr(reading, "HERE_ROWS", 0)
            code = job.main(["--lake", str(lake), *arguments])
        found = json.loads(report.read_text()) if report.exists() else {}
        found.pop("at", None)
        lines = [line for line in said.getvalue().splitlines() if line.startswith(f"{name}:")]
        done.append((name, int(code), out.getvalue(), "\n".join(lines), found))
    return done
