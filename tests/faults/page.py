"""python -m tests.faults.page: docs/faults-all.md and docs/faults.md, from build/faults/report.json.

The page keeps each case that the report lacks, and the rounds (`mixed`) where the report has none: without a
report it is rewritten from what it has. Delete a case that no longer exists by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.front import front, picture
from tests.faults.mixed.page import part_of, rounds_part, with_part
from tests.faults.report import PATH

_COLUMNS = (
    *("case", "result", "sent", "acknowledged", "lost", "named", "doubled"),
    *("detected", "recovered", "seed", "commit"),
)
_SENT_AGAIN = "sent again"
"""A column of themes in which it was counted."""
PAGE = Path("docs/faults-all.md")
FRONT = Path("docs/faults.md")
PICTURE = Path("docs/images/faults.svg")
_SCRATCH = re.compile(r"(?:/[^\s/]+)*/test_\w*\d\b")
"""The directory of a test, which pytest names after it with a number, wherever that is on this machine."""
_HEAD = """\
# Each fault that was tested

Ten lines of it are [in front](faults.md). The promises of [acknowledgement.md](acknowledgement.md) were
tested against these faults, with real
processes. Devices number every reading and record what was acknowledged. Then a fault is injected, and
repaired if it does not end by itself. Then the jobs bring everything into the tables, and an oracle compares
what was acknowledged with what is there. A case passes when

* every reading acknowledged as stored is in the table, or named by the audit with its reason (*named*),
* it is there as it was sent, once, and in the order of its device,
* nothing is there that was not sent,
* the hub held everything within a bound after the last reading was sent,
* ledgers, metrics and the audit agree with what happened, and
* the fault left a trace: another process, a link reported as down, a refusal.

`lost` are readings that were acknowledged, are in no table, and are not named. What a device itself had
published to a store that was lost before the agent's next look is listed as a trace. `doubled` are in the
table more than once. *Sent again* are messages that came to a stream of the hub which held them; the jobs
drop them. After a store was restored they are at most as many as are sent in 15 s. *Detected* is the time
from the fault until an agent reported it, *recovered* that from its repair (or from the fault if Petiole
repairs it) until the link flowed and the hub held everything. The machine has two cores and was busy with
other work, so times are upper bounds.

To run one: `make faults CASE="the agent of a leaf is killed"`; with `SEED=7` where chance orders the
faults. Cases that need a network or a disk of their own need root. All of them take well over an hour:
`make faults`, then `make faults-page`.

"""


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page, of the rows of the report; those of a theme stand together."""
    themes = by_theme(rows)
    passed = sum(_result(row) == "passed" for row in rows)
    left = sum(_result(row) == "not run" for row in rows)
    parts = [
        _HEAD,
        f"{len(rows)} cases: {passed} passed, {left} not run, {len(rows) - passed - left} failed.\n",
    ]
    for theme, some in themes.items():
        parts += [f"\n## {theme}\n\n"]
        counted = any(row.get("sent_again") is not None for row in some)
        columns = (*_COLUMNS, _SENT_AGAIN) if counted else _COLUMNS
        parts += [f"| {' | '.join(columns)} |\n", f"|{'---|' * len(columns)}\n"]
        parts += [_row(row, counted) for row in some]
    parts.append("\n## What was expected, and seen\n")
    parts += [_told(row) for some in themes.values() for row in some]
    return "".join(parts)


def by_theme(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows by what they have in common."""
    themes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        themes.setdefault((row.get("theme") or "Others").rstrip("."), []).append(row)
    return themes


def cases_of(text: str) -> list[dict[str, Any]]:
    """The cases of a page, as rows of a report."""
    tables, _, sections = text.replace(part_of(text), "").partition("\n## What was expected, and seen\n")
    seen = dict(_section(section) for section in sections.split("\n### ")[1:])
    cases = []
    for part in tables.split("\n## ")[1:]:
        theme, _, rest = part.partition("\n")
        lines = [line.strip("| ").split(" | ") for line in rest.splitlines() if line.startswith("| ")]
        for cells in lines[1:]:
            row = dict(zip(lines[0], cells, strict=True))
            numbers = {name: _parsed(row.pop(column, "–")) for column, name in _NUMBERS.items()}
            case = {
                "case": row["case"],
                "theme": theme,
                "passed": row["result"] == "passed",
                "commit": None if row["commit"] == "–" else row["commit"],
            }
            cases.append({**case, **numbers, **seen[row["case"]]})
    return cases


_NUMBERS = {
    **{name: name for name in ("sent", "acknowledged", "lost", "named", "seed")},
    "doubled": "duplicates",
    "detected": "detect_seconds",
    "recovered": "recover_seconds",
    _SENT_AGAIN: "sent_again",
}
"""The columns with numbers, and what the report calls them."""
_EXPECTED, _NOT_PROVEN = "Expected: ", "* *Not proven*: "


def _section(text: str) -> tuple[str, dict[str, Any]]:
    case, *lines = text.splitlines()
    expected = "".join(line.removeprefix(_EXPECTED)[:-1] for line in lines if line.startswith(_EXPECTED))
    not_proven = [line.removeprefix(_NOT_PROVEN) for line in lines if line.startswith(_NOT_PROVEN)]
    seen = [line[2:] for line in lines if line.startswith("* ") and not line.startswith(_NOT_PROVEN)]
    return case, {"expected": expected, "seen": seen, "not_proven": not_proven}


def _parsed(cell: str) -> int | float | None:
    if cell == "–":
        return None
    return float(cell.removesuffix(" s")) if cell.endswith(" s") else int(cell.replace(",", ""))


def merged(older: Sequence[Mapping[str, Any]], newer: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newer cases, each in the place of the older one of its name, and the older ones that are left."""
    by_name = {row["case"]: row for row in older} | {row["case"]: row for row in newer}
    return list(by_name.values())


def _row(row: Mapping[str, Any], counted: bool) -> str:
    cells = [
        row["case"],
        _result(row),
        *(_number(row.get(name)) for name in ("sent", "acknowledged", "lost", "named", "duplicates")),
        *(_seconds(row.get(name)) for name in ("detect_seconds", "recover_seconds")),
        _number(row.get("seed")),
        row.get("commit") or "–",
        *([_number(row.get("sent_again"))] if counted else []),
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


def _told(row: Mapping[str, Any]) -> str:
    lines = [f"\n### {row['case']}\n\n", f"Expected: {row['expected']}.\n\n" if row["expected"] else ""]
    lines += [f"* {one}\n" for one in row["seen"]]
    lines += [f"* *Not proven*: {one}\n" for one in row["not_proven"]]
    return _SCRATCH.sub("…", "".join(lines))


def _result(row: Mapping[str, Any]) -> str:
    if any(one.startswith("not run") for one in row["not_proven"]):
        return "not run"
    return "passed" if row["passed"] else "**failed**"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def main() -> None:
    """Write both pages and the picture."""
    found = json.loads(PATH.read_text())["cases"] if PATH.exists() else []
    print(
        f"{len(found)} cases taken from {PATH}" if found else f"no cases in {PATH}: run `make faults` first"
    )
    rounds = [row for row in found if row.get("scenario")]
    text = PAGE.read_text()
    part = rounds_part(rounds) if rounds else part_of(text)
    cases = merged(cases_of(text), [row for row in found if not row.get("scenario")])
    text = with_part(page(cases), part) if part else page(cases)
    PAGE.write_text(text)
    # Of the rounded figures of the page, so that the same page makes the same picture.
    themes = by_theme(cases_of(text))
    PICTURE.write_text(picture(themes))
    FRONT.write_text(front(themes, part))
    print(f"written: {PAGE}, {FRONT}, {PICTURE}")


if __name__ == "__main__":
    main()
