"""Sentences of the documents are short and have a plain order; no page is excepted.

A sentence ends at a full stop, question mark, semicolon or colon, and at the end of a paragraph, an item
or a cell. Code, headings and pictures are no sentences, and code within a sentence is a word of it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 25
MEAN = 20
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(r"^```.*?^```|<!--.*?-->|^ *(?:\||#|!\[).*?$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
PART = re.compile(r"\n\s*\n|\n\s*(?:[*-]|\d+\.)\s")
END = re.compile(r"(?<=[.;:?!])[)*\"]*\s+")
FORMS = {
    "a preposition before its relative pronoun": r"\b(?:of|by|to|for) (?:which|whom)\b",
    "a clause that hides its noun": r"\bwhat (?:there )?(?:is|are|was|were|has|had|came|comes|stands)\b",
    "a clause that hides its person": r"\bwho (?:may|has|can|is|makes)\b",
    "an old word": r"\b(?:whoever|nobody|anew|in vain|likewise|so long as)\b",
    "a cause after its effect": r"\bfor (?:it|they|there) (?:is|are|was|were|has|have)\b",
    "a comparison without a verb": r"\bas (?:it|they) (?:is|are|was|were)\b(?! (?:not|a|an|the)\b)",
    "to stand instead of to be": r"\bstands? (?:in|twice|beside|for|there)\b",
    "to let in instead of to admit": r"\b(?:is|are) let (?:in|go)\b",
    "a pronoun without its noun": r"\b(?:(?:all|the) others|ones|(?:new|old|other|single|that) one)\b",
}


EVENT = re.compile(r"(?:\b(?<!systemd )logs|\blog (?:says|soon says|repeats|event|has)) \(?`([a-z][^`_/]+)`")
TEXTS = ("agent", "hub_jobs")


@cache
def texts() -> str:
    """All texts of the code, and the parts of those that are put together."""
    trees = (ast.parse(path.read_text()) for top in TEXTS for path in (ROOT / top).rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))


def prose(page: Path) -> str:
    """The text of a page without code, tables, headings, pictures and addresses."""
    return CODE.sub("x", LINK.sub(r"\1", NO_PROSE.sub("", page.read_text())))


def cells(page: Path) -> list[str]:
    """The cells of the tables of a page, without code and addresses."""
    lines = (line for line in FENCE.sub("", page.read_text()).splitlines() if line.startswith("|"))
    return [CODE.sub("x", LINK.sub(r"\1", cell)) for line in lines for cell in line.strip("| ").split(" | ")]


def sentences(text: str) -> list[str]:
    """The sentences of a text, each in a line."""
    parts = (" ".join(part.split()) for part in PART.split(text))
    return [sentence for part in parts for sentence in END.split(part) if sentence]


def long_sentences(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST]


def odd_forms(text: str) -> list[str]:
    """Each odd form with its words and its name."""
    flat = " ".join(text.split())
    return [
        f"{flat[max(0, found.start() - 30) : found.end() + 20]!r}: {name}"
        for name, form in FORMS.items()
        for found in re.finditer(form, flat, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_short_sentences_in_a_plain_order(page: Path) -> None:
    texts = [prose(page), *cells(page)]
    assert [long for text in texts for long in long_sentences(text)] == []
    assert [odd for text in texts for odd in odd_forms(text)] == []
    lengths = [len(sentence.split()) for sentence in sentences(texts[0])]
    assert mean(lengths or [0]) <= MEAN


def test_a_log_event_that_a_page_names_is_logged() -> None:
    flat = {page: " ".join(page.read_text().split()) for page in PAGES}
    named = [(page.name, event) for page, text in flat.items() for event in EVENT.findall(text)]
    assert len(named) > 5
    # The rest of a text may come from a variable.
    parts = [(name, " ".join(part.split()[:4])) for name, event in named for part in event.split("…")]
    assert [(name, part) for name, part in parts if part not in texts()] == []


def test_a_long_sentence_and_each_odd_form_are_found() -> None:
    assert long_sentences(f"Short. {'word ' * 26}ends here; short again.") != []
    assert long_sentences("* First item of a list\n* " + "word " * 20 + "\n\n" + "word " * 20) == []
    for odd in (
        *("a leaf of which", "the user to whom", "what has come", "who may read", "nobody knows"),
        *("for it is old", "as it was", "it stands for a name", "they are let in", "the others wait"),
    ):
        assert odd_forms(odd), odd
    assert odd_forms("A leaf stores a reading, as it is not lost.") == []
