"""The site that `make docs` has built: its search, what its pages load, what of Markdown is left in them."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PAGES = sorted(
    str(page.relative_to(SITE))
    for page in SITE.glob("**/*.html")
    if page.parts[-2] in ("site", "inputs") and page.name != "404.html"
)
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]*)")
CODE = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.DOTALL)
LEFT_OVER = re.compile(r"^(?:[*-] \S|\|.*\||```|#+ )|\]\(|\*\*", re.MULTILINE)
"""What stands in a page whose Markdown was taken for text."""


@pytest.fixture(name="searched", scope="module")
def index() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((SITE / "search" / "search_index.json").read_text())["docs"]
    return entries


def test_the_search_finds_every_page_but_the_long_rest_of_measurements(
    searched: list[dict[str, Any]],
) -> None:
    found = {entry["location"].partition("#")[0] for entry in searched}
    assert found.issuperset(page for page in PAGES if not page.endswith("-all.html"))
    assert not {page for page in found if page.endswith("-all.html")}


def test_the_search_shows_first_what_a_person_in_need_asks(searched: list[dict[str, Any]]) -> None:
    boosts = {entry["location"].partition("#")[0]: entry.get("boost", 1) for entry in searched}
    assert sorted(boosts, key=lambda page: -boosts[page])[0] == "what-to-do.html"
    assert boosts["what-to-do.html"] > boosts["link.html"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert LOADED.findall((SITE / page).read_text()) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_markdown_is_left_in_a_page(page: str) -> None:
    article = (SITE / page).read_text().partition("<article")[2].partition("</article>")[0]
    text = unescape(re.sub(r"<[^>]+>", "", CODE.sub("", article)))
    assert LEFT_OVER.findall(text) == []


def test_a_file_beside_the_documents_comes_with_them() -> None:
    rules = SITE / "source" / "deploy" / "prometheus" / "hub.rules.yml"
    assert rules.read_text() == (ROOT / "deploy" / "prometheus" / "hub.rules.yml").read_text()
