"""The site of the documents leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", navigation, re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(named) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md")), (
        "mkdocs.yml: nav"
    )
