"""docs/fleet.md and docs/security.md: their configurations are taken and their commands do what is said."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.config import parse
from agent.leaf.inputs import OPTIONS
from tests.unit.server.test_render import key_of

ROOT = Path(__file__).parents[2]
FLEET = (ROOT / "docs" / "fleet.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()


def blocks(text: str, kind: str) -> list[str]:
    """The blocks of a document in this language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_commands_for_a_topology_go_well_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site, _cluster = blocks(FLEET, "toml")
    Path("site.toml").write_text(site)
    lines = [line for block in blocks(FLEET, "sh") for line in block.splitlines() if "site.toml" in line]
    assert len(lines) == 6
    for number, line in enumerate(lines):
        command = shlex.split(line.replace("U…", key_of(number)), comments=True)
        assert command[0] == "petiole"
        done = CliRunner().invoke(app, command[1:])
        assert done.exit_code == 0, (line, done.output)
    left = tomllib.loads(Path("site.toml").read_text())["leaf"]
    assert [one["domain"] for one in left] == ["edge-1"]
    assert "# where leaves dial" in Path("site.toml").read_text()
    assert Path("site/README.md").exists()


def test_the_cluster_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(blocks(FLEET, "toml")[1])
    done = CliRunner().invoke(app, ["render", str(tmp_path / "site.toml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert {"hub-a.conf", "hub-b.conf", "hub-c.conf", "cluster.conf"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_what_is_added_to_servers_is_taken() -> None:
    hub, leaf, websocket = blocks(SECURITY, "toml")
    for text in (hub, websocket):
        assert parse({"domain": "hub", "role": "hub", **tomllib.loads(text)}, OPTIONS).nats.extra
    table = tomllib.loads(leaf)
    table["nats"]["hub_urls"] = ["tls://hub.example:7422"]
    assert parse({"domain": "edge-1", **table}, OPTIONS).nats.remote
