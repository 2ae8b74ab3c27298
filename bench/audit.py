"""The audit of ten million readings, from the start of its process to its end, and in a process that runs;
and whether it names one reading that was taken out of the table. Then that of ten million new readings on top
of a settled past, and of ten times the past, in turns. No server is needed: `bench.lake`.

`PAST=1000000 python -m bench audit` for another smaller past than four million readings.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

from bench import lake as lakes
from bench.result import Against, Result, Row, rounds
from hub_jobs.audit import run as audit

READINGS = 10_000_000
_PAST = 4_000_000
_TIMES = 10
_LAST_HOURS = 2 * 3600
"""Batches of the last two hours, which are never settled: of them all the new ones are behind."""
_REPEATS = 3
_LOST_BATCH, _LOST_INDEX = 12_345, 321


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake, report = Path(directory) / "lake", Path(directory) / "audit.json"
        shape = lakes.Shape(READINGS)
        lakes.make(lake, shape)
        seconds, of_cpu, megabytes = _process(lake)
        warm = [_warm(lake) for _ in range(_REPEATS)]
        sentence = lakes.lose(lake, shape, _LOST_BATCH, _LOST_INDEX)
        _audited(lake, report)
        named = json.loads(report.read_text())["findings"] == [sentence]
        nights = _nights(Path(directory), int(os.environ.get("PAST", _PAST)))
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
            *nights,
        ],
    )


def _nights(directory: Path, past: int) -> list[Row]:
    """The whole process of an audit of new readings on a settled past, and on a longer one."""
    lakes_of = {times: directory / f"past{times}" for times in (1, _TIMES)}
    for times, lake in lakes_of.items():
        _settled(lake, past * times)
    found: dict[int, list[float]] = {times: [] for times in lakes_of}
    every: dict[int, float] = {}
    for times, lake in lakes_of.items():
        every[times] = _process(lake, "--all")[0]
        _put_back(lake)
    for _ in range(rounds(_REPEATS)):
        for times, lake in lakes_of.items():
            found[times].append(_process(lake)[0])
            _put_back(lake)
    new = f"{(READINGS + _LAST_HOURS * 500) / 1e6:.1f} million readings that are not settled"
    shown = {times: f"{past * times / 1e6:g} million that are" for times in lakes_of}
    everything = Against("--all of the same, once", every[_TIMES])
    return [
        Row(f"audit of {new}, on {shown[1]}", found[1], "s", least=True),
        Row(
            f"audit of {new}, on {shown[_TIMES]}",
            found[_TIMES],
            "s",
            goal=1.25,
            against=Against(f"on {shown[1]}", found[1]),
            least=True,
        ),
        Row("the same beside one of everything", found[_TIMES], "s", against=everything, least=True),
    ]


def _settled(lake: Path, past: int) -> None:
    """A lake of so many settled readings and the new ones, and what is settled of it beside it."""
    shape = lakes.Shape(past + READINGS + _LAST_HOURS * 500)
    settled = past // 500 + _LAST_HOURS
    lakes.add(lake, shape, range(settled), close=False)
    _audited(lake)
    shutil.copytree(lake / "settled", lake.with_suffix(".settled"))
    lakes.add(lake, shape, range(settled, shape.batches), close=True)


def _put_back(lake: Path) -> None:
    shutil.rmtree(lake / "settled")
    shutil.copytree(lake.with_suffix(".settled"), lake / "settled")


def _process(lake: Path, *options: str) -> tuple[float, float, float]:
    """Seconds of an audit as an operator runs it, those of a processor, and the most memory it held in MB."""
    command = [sys.executable, "-m", "hub_jobs.audit", "--lake", str(lake), *options]
    began = time.monotonic()
    audited = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(audited.pid, 0)
    audited.returncode = os.waitstatus_to_exitcode(status)
    if audited.returncode:
        raise RuntimeError(f"the audit of a lake in order ended with {audited.returncode}")
    seconds = time.monotonic() - began
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def _warm(lake: Path) -> float:
    """Seconds of one that reads again what those before it have settled."""
    began = time.monotonic()
    _audited(lake, again=True)
    return time.monotonic() - began


def _audited(lake: Path, report: Path | None = None, *, again: bool = False) -> None:
    with redirect_stdout(io.StringIO()):
        audit.run(lake, report, again=again)
