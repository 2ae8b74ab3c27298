"""What the fleet page is asked for, in the query of its address, so that it sorts and filters without scripts
and a view can be kept as a bookmark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from agent.hub import fleet_rows
from agent.hub.fleet_rows import FleetRow

PATH: Final = "/fleet"
ROWS: Final = 100
"""Leaves on one page."""
_LONGEST: Final = 64
_PAGES: Final = 4
"""Digits of the number of a page."""
_WILD: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Question:
    """Leaves whose domain fits `domain` and that are in `state` (empty: any), in the order of `sort`,
    backwards when `down`, and which page of them."""

    domain: str = ""
    state: str = ""
    sort: str = "state"
    down: bool = False
    page: int = 1

    def rows(self, rows: Iterable[FleetRow]) -> list[FleetRow]:
        """The rows of all pages. A domain without `*`, `?` and `[` is looked for anywhere in a name."""
        pattern = self.domain if _WILD & set(self.domain) else f"*{self.domain}*"
        fitting = fleet_rows.chosen(rows, [pattern], [self.state] if self.state else [])
        return fleet_rows.ordered(fitting, self.sort, down=self.down)

    def path(self, **changes: Any) -> str:
        """The address of this question, or of one that is otherwise."""
        question = replace(self, **changes)
        given = {
            "domain": question.domain,
            "state": question.state,
            "sort": ("-" if question.down else "") + question.sort,
            "page": str(question.page),
        }
        usual = {"domain": "", "state": "", "sort": "state", "page": "1"}
        query = urlencode({key: value for key, value in given.items() if value != usual[key]})
        return f"{PATH}?{query}" if query else PATH


def question_of(query: Mapping[str, str]) -> Question:
    """What is asked; of what is not understood nothing is taken."""
    sort = query.get("sort", "")
    state, page = query.get("state", ""), query.get("page", "")
    by = sort.removeprefix("-")
    number = int(page) if len(page) <= _PAGES and page.isascii() and page.isdigit() else 1
    return Question(
        # What is not UTF-8 comes as surrogates, which no address can hold.
        domain=query.get("domain", "")[:_LONGEST].encode(errors="replace").decode().strip(),
        state=state if state in fleet_rows.STATES else "",
        sort=by if by in fleet_rows.SORTS else "state",
        down=by in fleet_rows.SORTS and sort.startswith("-"),
        page=max(1, number),
    )
