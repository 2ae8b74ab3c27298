"""python -m tests.faults.page: keep what build/faults/report.json has in tests/faults/results.json, and
write the table of docs/proof.md.

The kept results keep each case that the report lacks, and the rounds (`mixed`) where the report has none.
Delete a case that no longer exists by hand. `make docs` makes the page of every case (`site_page`) from
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.front import table
from tests.faults.mixed.page import rounds_part
from tests.faults.report import PATH
from tests.harness.marked import with_marked

_COLUMNS = (
    *("case", "result", "sent", "acknowledged", "lost", "named", "doubled"),
    *("detected", "recovered", "seed", "commit"),
)
_SENT_AGAIN = "sent again"
"""A column of themes in which it was counted."""
RESULTS = Path(__file__).parent / "results.json"
PROOF = Path(__file__).parents[2] / "docs" / "proof.md"
Rows = Sequence[Mapping[str, Any]]
_SCRATCH = re.compile(r"(?:/[^\s/]+)*/test_\w*\d\b")
"""The directory of a test, which pytest names after it with a number, wherever that is on this machine."""
_HEAD = """\
# Each fault that was tested

[Proof](proof.md#faults) has the sums. The promises of [acknowledgement.md](acknowledgement.md) were
tested against these faults, with real processes. Devices number every reading and record each
acknowledgement. Then a fault is injected, and repaired if it does not end by itself. Then the jobs bring
everything into the tables, and an oracle compares them with the acknowledgements. A case passes when

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
`make faults`, then `make faults KEEP=1`.

"""


def kept() -> tuple[Rows, Rows]:
    """The kept cases and rounds."""
    found = json.loads(RESULTS.read_text())
    return found["cases"], found["rounds"]


def site_page() -> dict[str, str]:
    """The page of the kept results, by its path in the site."""
    cases, rounds = kept()
    return {"faults-all.md": page(cases, rounds)}


def page(rows: Rows, rounds: Rows = ()) -> str:
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
    parts += [f"\n{rounds_part(rounds)}"] if rounds else []
    parts.append("\n## What was expected, and seen\n")
    parts += [_told(row) for some in themes.values() for row in some]
    return "".join(parts)


def by_theme(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """The rows by what they have in common."""
    themes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        themes.setdefault((row.get("theme") or "Others").rstrip("."), []).append(row)
    return themes


def merged(older: Rows, newer: Rows) -> list[Mapping[str, Any]]:
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


def dumped(cases: Rows, rounds: Rows) -> str:
    """The kept results, a row a line."""
    lines = (",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) for rows in (cases, rounds))
    return '{{"cases": [\n{}\n], "rounds": [\n{}\n]}}\n'.format(*lines)


def main() -> None:
    """Keep the report and write the table."""
    found = json.loads(_SCRATCH.sub("…", PATH.read_text()))["cases"] if PATH.exists() else []
    print(
        f"{len(found)} cases taken from {PATH}" if found else f"no cases in {PATH}: run `make faults` first"
    )
    cases, rounds = kept()
    cases = merged(cases, [row for row in found if not row.get("scenario")])
    rounds = [row for row in found if row.get("scenario")] or rounds
    RESULTS.write_text(dumped(cases, rounds))
    PROOF.write_text(with_marked(PROOF.read_text(), "faults", table(by_theme(cases), rounds)))
    print(f"written: {RESULTS}, {PROOF}")


if __name__ == "__main__":
    main()
