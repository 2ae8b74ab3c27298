"""The whole files of docs/use-cases.md, and of inputs, can be used as they stand."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli.main import composed
from agent.config import Config
from agent.config.load import parse
from agent.leaf.inputs import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "use-cases.md").read_text()


def whole_files(page: str) -> list[dict[str, Any]]:
    """The configuration files in a document, each of which names its domain."""
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [file for file in map(tomllib.loads, blocks) if "domain" in file]


FILES = whole_files("use-cases.md")


@pytest.fixture(name="configs")
def parsed() -> dict[str, Config]:
    return {file["domain"]: parse(file, OPTIONS) for file in FILES}


def sizing(*options: str) -> dict[str, Any]:
    """What `petiole sizing` prints with these options."""
    found: dict[str, Any] = json.loads(CliRunner().invoke(composed(), ["sizing", *options, "--json"]).output)
    return found


def test_the_disk_that_the_questions_name_is_what_sizing_says() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\d+) MB \| (\d+) MiB \| (\d+) MiB \|$", (DOCS / "faq.md").read_text(), re.MULTILINE
    )
    assert rows
    for readings, disk, *sizes in rows:
        needed = sizing("--readings", readings, "--offline", "3d")
        (free,) = (line["value"] for line in needed["lines"] if line["what"] == "disk to be free")
        assert round(free) == int(disk)
        assert [needed[name] // 2**20 for name in ("max_bytes", "max_file_store")] == list(map(int, sizes))


@pytest.mark.parametrize(
    "file", [*FILES, *whole_files("inputs/sparkplug.md")], ids=lambda file: file["domain"]
)
def test_a_file_has_no_problem(file: dict[str, Any]) -> None:
    parse(file, OPTIONS)


def test_the_hub_lets_in_each_leaf_with_its_classes(configs: dict[str, Config]) -> None:
    hub = configs.pop("hub")
    told = {leaf.domain: set(leaf.classes) for leaf in hub.leaf}
    assert told == {name: {one.name for one in config.class_} for name, config in configs.items()}


def test_the_line_that_is_away_for_three_days_has_the_room_that_sizing_asks_for(
    configs: dict[str, Config],
) -> None:
    command = re.search(r"^petiole (sizing .*)$", PAGE, re.MULTILINE)
    assert command
    needed = sizing(*command[1].split()[1:])
    config = configs["pump-17"]
    assert config.link.profile == "thin"
    assert config.class_[0].max_bytes >= needed["max_bytes"]
    assert config.nats.max_file_store >= needed["max_file_store"]
    told = f"({needed['max_bytes'] // 2**20} MiB and {needed['max_file_store'] // 2**20} MiB at the least)"
    assert told in PAGE, "docs/use-cases.md tells other sizes than the command"
