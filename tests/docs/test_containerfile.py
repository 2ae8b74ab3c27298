"""deploy/Containerfile agrees with the project, also where there is no container engine that would tell."""

from __future__ import annotations

import re
from pathlib import Path

from agent.config.schema import Admin

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def test_it_is_made_of_the_root_alone_that_is_built_for_it() -> None:
    assert re.findall(r"^(?:FROM|ADD|COPY) (.+)$", TEXT, re.M) == ["scratch", "root.tar /"]


def test_it_asks_for_health_where_the_admin_server_is_by_default() -> None:
    assert f"http://{Admin().listen}/healthz" in TEXT


def test_it_runs_without_rights() -> None:
    assert re.findall(r"^USER (\S+)$", TEXT, re.M) == ["petiole"]
    assert TEXT.index("\nUSER ") < TEXT.index("\nENTRYPOINT ")
