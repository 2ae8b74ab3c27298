"""docs/what-to-do.md has a row for everything that asks something of a person, and each row leads on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from agent.contract import Exit, LeafState
from agent.leaf.intake import RefusalReason
from agent.leaf.link.status import LinkState
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.tables.gap_notes import GapReason

ROOT = Path(__file__).parents[2]
GROUP = re.compile(r"^\| <a id=\"([a-z]+)\"></a>\*\*")


def rows() -> dict[str, list[list[str]]]:
    """The rows of the table by their group, each in its cells."""
    groups: dict[str, list[list[str]]] = {}
    table = (
        (ROOT / "docs" / "what-to-do.md").read_text().partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    )
    for line in table.splitlines():
        if group := GROUP.match(line):
            found = groups.setdefault(group[1], [])
        else:
            found.append([cell.strip() for cell in line.strip("| ").split(" | ")])
    return groups


def named(group: str) -> set[str]:
    """What the first cells of a group stand for."""
    return {word for row in rows()[group] for word in re.findall(r"`([^`]+)`", row[0])}


def test_every_alert_has_a_row() -> None:
    files = (ROOT / "deploy" / "prometheus").glob("*.rules.yml")
    alerts = {name for file in files for name in re.findall(r"alert: (\w+)", file.read_text())}
    assert named("alerts") == alerts


def test_every_state_of_a_link_and_of_a_leaf_has_a_row() -> None:
    assert named("links") == set(LinkState)
    assert named("leaves") == set(LeafState)


def test_every_exit_code_has_a_row() -> None:
    assert [row[0] for row in rows()["exits"]] == [str(int(code)) for code in Exit]


def test_every_refusal_has_a_row_with_its_status() -> None:
    told = {(word, row[0][:3]) for row in rows()["answers"] for word in re.findall(r"`([^`]+)`", row[0])}
    assert told == {(str(reason), str(reason.status)) for reason in RefusalReason}


def test_every_reason_of_the_tables_has_a_row() -> None:
    assert named("quarantine") == set(QuarantineReason)
    assert named("gaps") == set(GapReason)


def test_a_row_that_asks_for_something_names_a_command_or_a_page() -> None:
    def leads_on(cells: Iterable[str]) -> bool:
        return any("](" in cell or cell.startswith("`") for cell in cells)

    groups = rows()
    left = [row[0] for group in groups.values() for row in group if not leads_on(row[2:])]
    assert left == ["0"], "only where all is well there is nothing to look at"
