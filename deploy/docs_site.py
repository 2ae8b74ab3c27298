"""What MkDocs does besides for the site of docs/; mkdocs.yml names this file.

The pages of every benchmark, fault and planted lie are made from the kept results, and are in the site alone.
A link to these results leads to the page made of them.

A link of a page to a file beside docs/ leads to a copy of it in the site, a link to a folder to a list of its
files. Headings have GitHub's anchors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

from bench.kept import read_all
from bench.report import site_pages
from tests.faults.page import site_page as faults
from tests.unit.hub_jobs.audit.planted.page import site_page as planted

_ROOT: Final = Path(__file__).parent.parent
_DOCS: Final = _ROOT / "docs"
_LINK: Final = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
_LANGUAGE: Final = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_TERM: Final = re.compile(r"^\| <a id=\"[\w-]+\"></a>([^|]+?) \| (.+) \|$", re.MULTILINE)
_PLAIN: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_JARGON: Final = (
    "aggregate",
    "backlog",
    "checkpoint",
    "dead letter",
    "epoch",
    "ledger",
    "linger",
    "open tail",
    "registrar",
)
_FIRST: Final = {"what-to-do": 3, "glossary": 2}
"""Pages that the search shows before others, and by how much."""
_WIDE: Final = ("what-to-do", "metrics", "configuration")
"""Pages whose tables need the room of the table of contents."""
_MADE: Final = (
    (re.compile(r"(?:\.\./)+bench/results/([\w-]+)\.json"), r"benchmarks-all.md#\1"),
    (re.compile(r"(?:\.\./)+bench/results"), "benchmarks-all.md"),
    (re.compile(r"(?:\.\./)+tests/faults/results\.json"), "faults-all.md"),
    (re.compile(r"(?:\.\./)+tests/unit/hub_jobs/audit/planted/plants\.py"), "planted-all.md"),
)
"""Kept results, and the page that is made of them."""
_COPIES: Final = "source"
"""The folder of the site that holds the files from beside docs/."""


def on_config(config: Any) -> Any:
    """Give headings the anchors that links on GitHub use."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of results, then the files that the pages link to and docs/ lacks; such a page may link
    further."""
    for name, text in (site_pages(read_all()) | faults() | planted()).items():
        files.append(File.generated(config, name, content=text))
    waiting, known = sorted(_DOCS.rglob("*.md")), set[Path]()
    while waiting:
        for target in sorted(linked(waiting.pop()) - known):
            known.add(target)
            if target.is_dir():
                names = "".join(f"* [{path.name}]({path.name})\n" for path in listed(target))
                content = f"# {target.relative_to(_ROOT)}\n\n{names}"
                files.append(File.generated(config, f"{copy_of(target)}/index.md", content=content))
                inside = set(listed(target)) - known
                known |= inside
                for path in inside:
                    files.append(File.generated(config, copy_of(path), abs_src_path=str(path)))
                continue
            files.append(File.generated(config, copy_of(target), abs_src_path=str(target)))
            waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links, have what is folded read as Markdown, and drop what follows a block's language. What a
    person in need asks is found first, and the long rest of measurements not at all."""
    uri = Path(page.file.src_uri)
    if uri.stem in _WIDE:
        page.meta["hide"] = ["toc"]
    if uri.stem in _FIRST:
        page.meta["search"] = {"boost": _FIRST[uri.stem]}
    elif uri.stem.endswith("-all"):
        page.meta["search"] = {"exclude": True}
    outside = uri.parts[0] == _COPIES
    if outside and uri.name == "index.md":
        return markdown
    here = _ROOT / uri.relative_to(_COPIES) if outside else _DOCS / uri
    place = (_DOCS / uri).parent

    def turned(link: re.Match[str]) -> str:
        if page_of_results := made_of(link[1]):
            path, _, anchor = page_of_results.partition("#")
            return f"]({os.path.relpath(_DOCS / path, place)}{anchor and f'#{anchor}'}"
        target = (here.parent / link[1]).resolve()
        if not target.is_relative_to(_DOCS):
            target = _DOCS / copy_of(target) / ("index.md" if target.is_dir() else "")
        return f"]({os.path.relpath(target, place)}"

    if uri.stem != "glossary":
        markdown += explained((_DOCS / "glossary.md").read_text())
    markdown = _LANGUAGE.sub(r"\1", _LINK.sub(turned, markdown))
    return markdown.replace("<details>", '<details markdown="1">')


def explained(glossary: str) -> str:
    """Definitions of the words that only this field knows, shown where one is pointed at."""
    rows = dict(_TERM.findall(_PLAIN.sub(r"\1", glossary)))
    return "".join(f"\n\n*[{term}]: {rows[term]}" for term in _JARGON)


def linked(page: Path) -> set[Path]:
    """The files and folders beside docs/ that a page links to."""
    if not page.exists():
        return set()
    links = (link for link in _LINK.findall(page.read_text()) if not made_of(link))
    targets = {(page.parent / link).resolve() for link in links}
    return {target for target in targets if target.exists() and not target.is_relative_to(_DOCS)}


def made_of(link: str) -> str:
    """The page of the site that is made of the results a link leads to; "" for another link."""
    found = ((pattern.fullmatch(link), page) for pattern, page in _MADE)
    return next((match.expand(page) for match, page in found if match), "")


def listed(folder: Path) -> Iterator[Path]:
    """The files of a folder that somebody wrote."""
    return (path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".pyc")


def copy_of(path: Path) -> str:
    """Where in the site the copy of a file or folder is."""
    return f"{_COPIES}/{path.relative_to(_ROOT)}"


def slug(text: str, separator: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)
