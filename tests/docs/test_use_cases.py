"""The whole files of docs/use-cases.md, and of inputs, can be used as they stand; the configurations of
docs/fleet.md and docs/security.md are taken, and rendered."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.config import Config, parse
from agent.leaf.inputs import OPTIONS
from tests.unit.server.test_render import key_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FLEET, SECURITY = ((DOCS / f"{name}.md").read_text() for name in ("use-cases", "fleet", "security"))


def whole_files(page: str) -> list[dict[str, Any]]:
    """The configuration files in a document, each of which names its domain."""
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [file for file in map(tomllib.loads, blocks) if "domain" in file]


FILES = whole_files("use-cases.md")


@pytest.fixture(name="configs")
def parsed() -> dict[str, Config]:
    return {file["domain"]: parse(file, OPTIONS) for file in FILES}


def sizes(readings: str, profile: str) -> tuple[str, int, int]:
    """The free disk of a load of docs/capacity.md, and the two sizes in MiB."""
    row = rf"^\| {readings} \| `{profile}` \| ([\d,]+) MB \| ([\d,]+) MiB \| ([\d,]+) MiB \|"
    (found,) = re.findall(row, (DOCS / "capacity.md").read_text(), re.MULTILINE)
    return found[0], int(found[1].replace(",", "")), int(found[2].replace(",", ""))


@pytest.mark.parametrize("file", [*FILES, *whole_files("inputs/mqtt.md")], ids=lambda file: file["domain"])
def test_a_file_has_no_problem(file: dict[str, Any]) -> None:
    parse(file, OPTIONS)


def test_the_hub_lets_in_each_leaf_with_its_classes(configs: dict[str, Config]) -> None:
    hub = configs.pop("hub")
    told = {leaf.domain: set(leaf.classes) for leaf in hub.leaf}
    assert told == {name: {one.name for one in config.class_} for name, config in configs.items()}


def test_the_line_that_is_away_for_three_days_has_the_room_that_it_needs(configs: dict[str, Config]) -> None:
    _, max_bytes, max_file_store = sizes("10", "thin")
    config = configs["pump-17"]
    assert config.link.profile == "thin"
    assert config.class_[0].max_bytes >= max_bytes * 2**20
    assert config.nats.max_file_store >= max_file_store * 2**20
    assert f"({max_bytes} MiB and {max_file_store} MiB)" in PAGE, "docs/use-cases.md has other sizes"


def blocks(text: str, kind: str) -> list[str]:
    """The blocks of a document in this language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_server_of_its_own_is_rendered(tmp_path: Path) -> None:
    (text,) = blocks(FLEET, "toml")
    file = tmp_path / "petiole.toml"
    file.write_text(text)
    for command in (["render", "--out", str(tmp_path)], ["fleet", "add", "edge-1", key_of(1)]):
        done = CliRunner().invoke(app, [*command, "-c", str(file)])
        assert done.exit_code == 0, done.output
    assert f"store_dir: {json.dumps('/var/lib/nats')}" in (tmp_path / "nats.conf").read_text()


def test_what_is_added_to_servers_is_taken() -> None:
    hub, leaf, websocket = blocks(SECURITY, "toml")
    for text in (hub, websocket):
        assert parse({"domain": "hub", "role": "hub", **tomllib.loads(text)}, OPTIONS).nats.extra
    table = tomllib.loads(leaf)
    table["nats"]["hub_urls"] = ["tls://hub.example:7422"]
    assert parse({"domain": "edge-1", **table}, OPTIONS).nats.remote
