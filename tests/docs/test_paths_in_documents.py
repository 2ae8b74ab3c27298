"""Every file and folder that the documents for newcomers name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:agent|hub_jobs|tests|deploy|systemd|bench|docs)/[\w./-]*\w/?)")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_a_path_in_a_document_exists(page: str) -> None:
    paths = set(PATH.findall((ROOT / page).read_text()))
    assert paths
    named = [path for path in sorted(paths) if not {"NAME", "TARGET"} & set(re.split(r"\W", path))]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_file_to_read_first_is_in_its_folder() -> None:
    rows = re.findall(r"^\|.*\|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    named = [(PATH.findall(row), re.findall(r"`((?:\w+/)?\w+\.py)`", row)) for row in rows]
    assert any(files for _, files in named)
    for paths, files in named:
        folders = [ROOT / path for path in paths] + [
            (ROOT / path).parent for path in paths if path.endswith(".py")
        ]
        for file in files:
            assert any((folder / file).exists() for folder in folders), (paths, file)


def test_a_file_that_the_architecture_names_without_its_folder_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    paths = [
        str(path.relative_to(ROOT))
        for top in ("agent", "hub_jobs", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    assert [
        name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in paths)
    ] == []
