"""docs/client.md names nothing that is not there: tests, files, keys of the configuration."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agent.config.load import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
SEED = PAGE.partition("## NATS step by step")[2]

FOLDERS = ("tests/e2e", "tests/upstream")


def sentences(pattern: str) -> set[str]:
    """The names of the tests in the files that a pattern fits."""
    trees = (ast.parse(path.read_text()) for folder in FOLDERS for path in (ROOT / folder).glob(pattern))
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.AsyncFunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)(?:…|\[[…\w]+\])*`", SEED))))
def test_a_test_that_the_document_names_is_there_and_is_one(name: str) -> None:
    assert len([one for one in sentences("test_seed*.py") if one.startswith(name)]) == 1


def test_every_step_that_is_tested_is_in_the_document() -> None:
    named = tuple(re.findall(r"`(test_\w+)", SEED))
    assert {one for one in sentences("test_seed*.py") if not one.startswith(named)} == set()


def test_the_files_that_the_documents_name_are_there() -> None:
    for name in set(re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", PAGE)):
        assert any((ROOT / folder / name).is_file() for folder in FOLDERS), name


def test_the_copies_of_the_document_are_a_configuration(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", SEED, re.DOTALL)
    file = tmp_path / "hub.toml"
    file.write_text(f'role = "hub"\ndomain = "hub"\nstate_dir = "{tmp_path}"\n{block}')
    config = load(file, {})
    assert [one.of for one in config.mirror] == ["test"]
    assert [one.from_[0].domain for one in config.source] == ["leaf"]
