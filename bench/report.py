"""`python -m bench.report`: keep the results that were measured since, and make docs/benchmarks.md and its
pictures from those that are kept."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

from bench import NAMES
from bench.charts import bars, ratios
from bench.kept import DIRECTORY, Kept, read, read_all
from bench.page import page
from bench.result import BUILT

_DOCS: Final = Path(__file__).parent.parent / "docs"


def documents(results: dict[str, Kept]) -> dict[str, str]:
    """The page and its pictures, each by its path below docs/."""
    ordered = {name: results[name] for name in NAMES if name in results}
    pictures = {name: bars(kept) for name, kept in ordered.items()}
    drawn = {name: picture for name, picture in pictures.items() if picture is not None}
    found = {f"images/bench-{name}.svg": picture for name, picture in drawn.items()}
    found["images/bench-ratios.svg"] = ratios(ordered.values())
    return found | {"benchmarks.md": page(ordered, drawn)}


def keep(built: Path, kept: Path) -> list[str]:
    """Keep each whole result that is newer than the one kept of the same benchmark; returns their names."""
    taken = []
    for name in NAMES:
        new, old = built / f"{name}.json", kept / f"{name}.json"
        if new.exists() and _is_whole(new) and (not old.exists() or _date(new) > _date(old)):
            kept.mkdir(exist_ok=True)
            shutil.copyfile(new, old)
            taken.append(name)
    return taken


def main() -> int:
    """Do both; returns the exit code."""
    print("kept now:", ", ".join(keep(BUILT, DIRECTORY)) or "nothing new")
    for path, text in documents(read_all()).items():
        (_DOCS / path).write_text(text)
    print(f"written: {_DOCS / 'benchmarks.md'}")
    return 0


def _is_whole(path: Path) -> bool:
    return "unfinished" not in json.loads(path.read_text())


def _date(path: Path) -> str:
    return str(read(path).measured["date"])


if __name__ == "__main__":
    sys.exit(main())
