"""The wheel in an empty environment, with nothing else of the project: the first hour, as
docs/getting-started.md tells it from the installation on, and the demonstration."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from deploy.dist import project_version
from deploy.wheel import build
from tests.harness.getting_started import FirstHour, install_block


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory with the wheel alone in it."""
    wheel, _ = build(tmp_path_factory.mktemp("built"))
    directory = tmp_path_factory.mktemp("empty")
    shutil.copy(wheel, directory)
    return directory


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    """Nothing of the one that runs the tests. `~/petiole/bin` does what the page's `activate` would."""
    return {"HOME": str(place), "PATH": f"{place}/petiole/bin:/usr/local/bin:/usr/bin:/bin"}


def test_no_block_of_the_first_hour_fails_from_the_installation_on(
    place: Path, environment: dict[str, str]
) -> None:
    began = time.monotonic()
    page = FirstHour(place, environment)
    page.done(install_block())
    installed = time.monotonic()
    page.play()
    print(f"installed in {installed - began:.0f} s, played in {time.monotonic() - installed:.0f} s")
    said = "\n".join(page.said)
    assert "204 No Content" in said
    assert "nothing is missing, nothing is doubled" in said
    assert " 2.4 " in next(line for line in said.splitlines() if "pump-7" in line)
    assert {line["level"] for line in page.logged()} <= {"debug", "info"}


def test_the_demonstration_is_green(place: Path, environment: dict[str, str]) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        ["petiole", "demo"], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    domains = json.loads((elsewhere / "build" / "demo" / "report.json").read_text())["domains"]
    assert domains.keys() == {"edge-1", "edge-2"}
    for domain in domains.values():
        assert domain["accepted"] == domain["in_table"] > 0


def test_it_says_its_version_and_brings_units_dashboards_and_rules(
    place: Path, environment: dict[str, str]
) -> None:
    said = subprocess.run(["petiole", "--version"], env=environment, capture_output=True, check=True)
    assert said.stdout.decode().strip() == project_version()
    shared = place / "petiole" / "share" / "petiole"
    for name in ("systemd/petiole.service", "prometheus/hub.rules.yml", "grafana/fleet.json"):
        assert (shared / name).is_file()
    writing = ["petiole", "new", "input", "press-line", "--out", str(place)]
    subprocess.run(writing, env=environment, capture_output=True, check=True)
    assert (place / "petiole-press-line" / "tests" / "test_contract.py").is_file()
