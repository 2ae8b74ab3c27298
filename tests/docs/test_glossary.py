"""docs/glossary.md introduces each term once, and pages lead to it where they use one first."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TERM = re.compile(r'^\| <a id="([\w-]+)"></a>([^|]+) \| (.+) \|$', re.MULTILINE)


def test_each_term_is_introduced_once() -> None:
    text = (DOCS / "glossary.md").read_text()
    terms = TERM.findall(text)
    assert len(terms) == text.count("<a id=")
    assert len({name for _, name, _ in terms}) == len({anchor for anchor, _, _ in terms}) == len(terms)


def test_a_page_leads_to_a_term_at_most_once() -> None:
    led = {page: re.findall(r"glossary\.md#([\w-]+)", page.read_text()) for page in DOCS.glob("*.md")}
    assert sum(map(len, led.values())) > 40
    assert {page.name for page, terms in led.items() if len(terms) != len(set(terms))} == set()
