"""deploy/Containerfile agrees with the project: there is no container engine that would tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agent.config.schema import Admin

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def test_it_takes_what_the_package_is_made_of() -> None:
    taken = {name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.M) for name in line.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    wanted = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], *packages}
    assert taken == wanted
    assert all((ROOT / name).exists() for name in taken)


def test_it_asks_for_health_where_the_admin_server_is_by_default() -> None:
    assert f"http://{Admin().listen}/healthz" in TEXT


def test_it_runs_without_rights() -> None:
    assert re.findall(r"^USER (\S+)$", TEXT, re.M) == ["petiole"]
    assert TEXT.index("\nUSER ") < TEXT.index("\nENTRYPOINT ")
