"""The units of systemd/: what systemd itself says of them; and deploy/Containerfile agrees with the project,
also where there is no container engine that would tell."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.config.schema import Admin

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
MOST_EXPOSED: Mapping[str, float] = {"petiole.service": 2.5, "petiole-hub.service": 2.5}
"""By `systemd-analyze security`, from 0 to 10; 4 for the jobs."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=UNITS)


@needs_systemd
def test_systemd_finds_no_fault_in_any_unit(tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path / "units")
    names = sorted([*tmp_path.glob("units/*.service"), *tmp_path.glob("units/*.timer")])
    for unit in names:
        # The programs are not installed here, which is a fault to systemd.
        unit.write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        )
    found = analyze("verify", "--man=no", *map(str, names))
    faults = [line for line in found.stderr.splitlines() if "petiole" in line]
    assert faults == []


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES)
def test_a_unit_lets_its_process_do_little(unit: str) -> None:
    most = MOST_EXPOSED.get(unit, 4.0)
    found = analyze("security", "--offline=yes", f"--threshold={round(most * 10)}", f"./{unit}")
    assert found.returncode == 0, f"{found.stdout[-200:]} {found.stderr}"


def test_what_a_unit_does_not_restrict_is_said_with_its_reason() -> None:
    for name in ("petiole.service", "petiole-hub.service", "petiole-job-.service.d/50-shared.conf"):
        set_, _, left_out = (UNITS / name).read_text().partition("# Left out, and why:")
        known = {"ProtectClock", "ProtectProc", "ProcSubset", "PrivateUsers", "MemoryDenyWriteExecute"}
        missing = known - set(re.findall(r"^(\w+)=", set_, re.MULTILINE))
        assert missing <= set(re.findall(r"(\w+)=", left_out)), name


def test_the_agent_may_read_the_clock_and_not_set_it() -> None:
    """The C library's adjtimex is the system call clock_adjtime; seen under systemd 252."""
    text = (UNITS / "petiole.service").read_text()
    allowed = " ".join(re.findall(r"^SystemCallFilter=([^~].*)$", text, re.MULTILINE)).split()
    assert {"adjtimex", "clock_adjtime"} <= set(allowed)
    assert "\nProtectClock" not in text
    assert "\nCapabilityBoundingSet=\n" in text


def test_each_job_that_runs_by_itself_has_a_unit_that_starts_it() -> None:
    for unit in UNITS.glob("petiole-job-*.service"):
        job = unit.stem.removeprefix("petiole-job-")
        if job == "class-archive":
            continue
        assert f"-m hub_jobs.{job} " in unit.read_text()
        assert (ROOT / "hub_jobs" / job / "__main__.py").is_file()
        once = "Type=oneshot" in unit.read_text()
        assert unit.with_suffix(".timer").exists() == once


def test_the_jobs_with_spark_start_after_their_archive_of_classes() -> None:
    archive = UNITS / "petiole-job-class-archive.service"
    assert "-m hub_jobs.spark.class_archive\n" in archive.read_text()
    for job in ("ingest", "refine", "rollup", "gaps", "audit"):
        text = (UNITS / f"petiole-job-{job}.service").read_text()
        assert {f"Wants={archive.name}", f"After={archive.name}"} <= set(text.splitlines()), job
    shared = (UNITS / "petiole-job-.service.d/50-shared.conf").read_text()
    assert "\nCacheDirectory=petiole-jobs\n" in shared


def test_the_image_is_made_of_the_root_alone_that_is_built_for_it() -> None:
    assert re.findall(r"^(?:FROM|ADD|COPY) (.+)$", CONTAINERFILE, re.M) == ["scratch", "root.tar /"]


def test_the_image_asks_for_health_where_the_admin_server_is_by_default() -> None:
    assert f"http://{Admin().listen}/healthz" in CONTAINERFILE


def test_the_image_runs_without_rights() -> None:
    assert re.findall(r"^USER (\S+)$", CONTAINERFILE, re.M) == ["petiole"]
    assert CONTAINERFILE.index("\nUSER ") < CONTAINERFILE.index("\nENTRYPOINT ")
