"""`python -m bench.report`: keep the results that were measured since, and write the table of docs/proof.md
from the kept results. `make docs` makes the page of all rows from them (`site_pages`)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from bench import NAMES
from bench.kept import DIRECTORY, Kept, read, read_all
from bench.page import ALL, page
from bench.result import BUILT
from bench.summary import missed, over_lines, proof
from tests.harness.marked import with_marked

PROOF: Final = Path(__file__).parent.parent / "docs" / "proof.md"


def site_pages(results: dict[str, Kept]) -> dict[str, str]:
    """The page of all rows, by its path in the site."""
    results = ordered(results)
    return {ALL: page(results, missed(results))}


def ordered(results: dict[str, Kept]) -> dict[str, Kept]:
    """The results in the order of the benchmarks."""
    return {name: results[name] for name in NAMES if name in results}


def keep(built: Path, kept: Path) -> dict[str, str]:
    """Keep each result that is newer than the one kept of the same benchmark and not worth less; says of
    each newer one what became of it."""
    said = {}
    for name in NAMES:
        new, old = built / f"{name}.json", kept / f"{name}.json"
        if not new.exists() or (old.exists() and _date(new) <= _date(old)):
            continue
        if why := _worth_less(read(new), read(old) if old.exists() else None):
            said[name] = f"not kept: {why}"
            continue
        kept.mkdir(exist_ok=True)
        shutil.copyfile(new, old)
        said[name] = "kept"
    return said


def main() -> int:
    for name, what in keep(BUILT, DIRECTORY).items():
        print(f"{name}: {what}")
    results = ordered(read_all())
    page = with_marked(PROOF.read_text(), "benchmarks", proof(results))
    PROOF.write_text(with_marked(page, "lines", over_lines(results.get("lines"))))
    print(f"written: {PROOF}")
    return 0


def _worth_less(new: Kept, old: Kept | None) -> str:
    """Why a result does not take the place of the one kept, empty where it does."""
    if not new.lines:
        return "it has no rows"
    if old is None:
        return ""
    if old.quiet and not new.quiet:
        return f"load {new.measured['load_before']}, and the kept one was measured on a quiet machine"
    if new.failed and not old.failed:
        return f"{new.failed[0].what} failed, and the kept one is whole"
    return ""


def _date(path: Path) -> str:
    return str(read(path).measured["date"])


if __name__ == "__main__":
    sys.exit(main())
