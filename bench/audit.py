"""The audit of ten million readings, from the start of its process to its end, and in a process that runs;
and whether it names one reading that was taken out of the table. No server is needed: `bench.lake`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

from bench import lake as lakes
from bench.result import Result, Row
from hub_jobs.audit import run as audit

READINGS = 10_000_000
_REPEATS = 3
_LOST_BATCH, _LOST_INDEX = 12_345, 321


def run() -> Result:
    """Make the lake and measure."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake, report = Path(directory) / "lake", Path(directory) / "audit.json"
        shape = lakes.Shape(READINGS)
        lakes.make(lake, shape)
        seconds, of_cpu, megabytes = _process(lake)
        warm = [_warm(lake) for _ in range(_REPEATS)]
        sentence = lakes.lose(lake, shape, _LOST_BATCH, _LOST_INDEX)
        _audited(lake, report)
        named = json.loads(report.read_text())["findings"] == [sentence]
    what = f"audit of {READINGS // 1_000_000} million readings"
    return Result(
        "audit",
        [
            Row(f"{what}, its whole process", seconds, "s", least=True),
            Row(
                f"{what}, in a process that runs, median of {_REPEATS}",
                median(warm),
                "s",
                least=True,
            ),
            Row(f"{what}, its whole process, on a processor", of_cpu, "CPU-seconds"),
            Row(f"{what}, the most memory", megabytes, "MB"),
            Row(
                "one lost reading, named by batch and index and nothing else named",
                float(named),
                "of 1",
                must=1,
            ),
        ],
    )


def _process(lake: Path) -> tuple[float, float, float]:
    """Seconds of an audit as an operator runs it, those of a processor, and the most memory it held in MB."""
    program = "import sys; from hub_jobs.audit.run import main; sys.exit(main())"
    began = time.monotonic()
    audited = subprocess.Popen(
        [sys.executable, "-c", program, "--lake", str(lake)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(audited.pid, 0)
    audited.returncode = os.waitstatus_to_exitcode(status)
    if audited.returncode:
        raise RuntimeError(f"the audit of a lake in order ended with {audited.returncode}")
    seconds = time.monotonic() - began
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def _warm(lake: Path) -> float:
    began = time.monotonic()
    _audited(lake)
    return time.monotonic() - began


def _audited(lake: Path, report: Path | None = None) -> None:
    with redirect_stdout(io.StringIO()):
        audit.run(lake, report)
