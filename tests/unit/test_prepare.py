"""The Python of .venv: the named Python, and none other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.dist import ROOT

_PYTHON = """#!/bin/sh
case "$*" in
    *base_prefix*) echo {name} ;;
    *version_info*) exit {old} ;;
    "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    "-m pip"*) echo "$@" >> installed ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "prepare.sh", tmp_path / "deploy")
    for name, old in (("first", 0), ("second", 0), ("older", 1)):
        python = tmp_path / name
        python.write_text(_PYTHON.format(name=name, old=old))
        python.chmod(0o755)
    return tmp_path


def _prepare(checkout: Path, level: str, python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["deploy/prepare.sh", level],
        cwd=checkout,
        env={**os.environ, "PYTHON": python and str(checkout / python)},
        capture_output=True,
        text=True,
        check=False,
    )


def _python_of(checkout: Path) -> str:
    asked = (str(checkout / ".venv/bin/python"), "-c", "base_prefix")
    return subprocess.check_output(asked, text=True).strip()


def test_an_environment_of_another_python_is_made_again(checkout: Path) -> None:
    assert _prepare(checkout, "wheel", "first").returncode == 0
    assert (_python_of(checkout), (checkout / ".venv/wheel").exists()) == ("first", True)
    assert _prepare(checkout, "python", "first").stdout == "same\n"
    assert _prepare(checkout, "python", "second").stdout == ""
    assert _prepare(checkout, "wheel", "second").returncode == 0
    assert _python_of(checkout) == "second"
    assert len((checkout / "installed").read_text().splitlines()) == 2


def test_an_environment_stays_where_no_python_is_named(checkout: Path) -> None:
    assert _prepare(checkout, "wheel", "second").returncode == 0
    assert _prepare(checkout, "python", "").stdout == "same\n"
    assert _prepare(checkout, "wheel", "").returncode == 0
    assert _python_of(checkout) == "second"


@pytest.mark.parametrize("python", ["older", "missing"])
def test_a_python_that_cannot_be_used_is_refused_and_the_environment_stays(
    checkout: Path, python: str
) -> None:
    assert _prepare(checkout, "wheel", "first").returncode == 0
    refused = _prepare(checkout, "wheel", python)
    assert refused.returncode == 1
    assert "is no Python of 3.11 or newer; name another one" in refused.stderr
    assert _python_of(checkout) == "first"
