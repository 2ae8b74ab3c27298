"""Every file and folder that the documents for newcomers name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:agent|hub_jobs|tests|deploy|systemd|bench|docs)/[\w./-]*\w/?)")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/architecture.md"])
def test_a_path_in_a_document_exists(page: str) -> None:
    paths = set(PATH.findall((ROOT / page).read_text()))
    assert paths
    named = [path for path in sorted(paths) if not {"NAME", "TARGET"} & set(re.split(r"\W", path))]
    assert [path for path in named if not (ROOT / path).exists()] == []
