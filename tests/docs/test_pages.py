"""The pages of the documents hang together: every link, path and term leads somewhere, and the site to every
page. What code, units and alerts name of the documents exists as well."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from bench.kept import read_all
from bench.report import site_pages
from tests.faults.page import site_page as faults
from tests.unit.hub_jobs.audit.planted.page import site_page as planted

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
PATH = re.compile(r"`((?:agent|hub_jobs|tests|deploy|systemd|bench|docs)/[\w./-]*\w/?)(?![\w*…/.-])")
TERM = re.compile(r'^\| <a id="([\w-]+)"></a>([^|]+) \| (.+) \|$', re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")
MADE = {
    name: text
    for name, text in (site_pages(read_all()) | faults() | planted()).items()
    if name.endswith(".md")
}
"""The pages of results, which `make docs` makes for the site alone."""
NAMED = re.compile(r"(?<![\w./:-])docs/([\w./-]+?\.md)(?:#([\w-]+))?")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    found: Counter[str] = Counter()
    result = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        result.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return result | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def broken(page: Path, text: str, made: dict[str, str]) -> list[str]:
    """The links of a page that lead nowhere; `made` are pages that are not files."""
    found = []
    for link in LINK.findall(FENCE.sub("", text)):
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        led = (
            text
            if target == page
            else made.get(path) or (target.read_text() if target.suffix == ".md" else "")
        )
        if not (led or target.exists()) or (anchor and target.suffix == ".md" and anchor not in anchors(led)):
            found.append(link)
    return found


@each_page
def test_a_link_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(), {}) == []


@pytest.mark.parametrize("name", MADE)
def test_a_link_of_a_page_of_results_leads_somewhere(name: str) -> None:
    assert broken(DOCS / name, MADE[name], MADE) == []


@pytest.mark.parametrize("top", ["agent", "hub_jobs", "deploy", "systemd", "tests", "bench", "findings"])
def test_a_page_that_code_names_exists_with_its_anchor(top: str) -> None:
    ends = {".py", ".toml", ".yml", ".json", ".sh", ".service", ".timer", ".conf", ".j2", ".html"}
    files = [path for path in (ROOT / top).rglob("*") if path.suffix in ends and path.is_file()]
    files += (
        [ROOT / "config.example.toml", ROOT / "Makefile", ROOT / "pyproject.toml"] if top == "agent" else []
    )
    missing = []
    for path in files:
        for name, anchor in NAMED.findall(path.read_text(errors="replace")):
            page = DOCS / name
            if not page.exists() or (anchor and anchor not in anchors(page.read_text())):
                missing.append(f"{path.relative_to(ROOT)}: docs/{name}{anchor and f'#{anchor}'}")
    assert missing == []


@each_page
def test_a_path_exists(page: Path) -> None:
    paths = PATH.findall(page.read_text())
    named = [path for path in sorted(set(paths)) if not {"NAME", "TARGET"} & set(re.split(r"\W", path))]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", navigation, re.MULTILINE)
    written = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*written, *MADE]), "mkdocs.yml: nav"


def test_each_term_is_introduced_once() -> None:
    text = (DOCS / "glossary.md").read_text()
    terms = TERM.findall(text)
    assert len(terms) == text.count("<a id=")
    assert len({name for _, name, _ in terms}) == len({anchor for anchor, _, _ in terms}) == len(terms)


def test_a_page_leads_to_a_term_at_most_once() -> None:
    led = {page: re.findall(r"glossary\.md#([\w-]+)", page.read_text()) for page in DOCS.glob("*.md")}
    assert sum(map(len, led.values())) > 40
    assert {page.name for page, terms in led.items() if len(terms) != len(set(terms))} == set()


def test_the_file_to_read_first_is_in_its_folder() -> None:
    rows = re.findall(r"^\|.*\|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    named = [(PATH.findall(row), re.findall(r"`((?:\w+/)?\w+\.py)`", row)) for row in rows]
    assert any(files for _, files in named)
    for paths, files in named:
        folders = [(ROOT / path).parent if path.endswith(".py") else ROOT / path for path in paths]
        for file in files:
            assert any((folder / file).exists() for folder in folders), (paths, file)


def test_a_file_that_the_architecture_names_without_its_folder_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", (DOCS / "architecture.md").read_text()))
    tops = ("agent", "hub_jobs", "tests")
    paths = [f"/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.py")]
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in paths)] == []
