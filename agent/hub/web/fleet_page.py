"""Renders the table of leaves; the URL's query selects and sorts, without scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import replace

from agent.contract import state_of
from agent.hub import fleet_rows
from agent.hub.fleet_rows import STATES, FleetRow
from agent.hub.web.html import STYLE, Markup, document, element, join

PATH: Final = "/fleet"
ROWS: Final = 100
"""Leaves per page."""
_LONGEST: Final = 64
_PAGES: Final = 4
"""Digits of a page number."""
_WILD: Final = frozenset("*?[")


class Question(Struct, frozen=True):
    """Selects `domain` and `state`, sorts by `sort` (reversed if `down`), and names the page."""

    domain: str = ""
    state: str = ""
    sort: str = "state"
    down: bool = False
    page: int = 1
    refresh: bool = True
    """Whether browsers refresh."""

    def fitting(self, rows: Iterable[FleetRow]) -> Iterator[FleetRow]:
        """Yield matching rows; a domain without wildcards matches anywhere."""
        pattern = self.domain if _WILD & set(self.domain) else f"*{self.domain}*"
        return fleet_rows.chosen(rows, [pattern] if self.domain else [], [self.state] if self.state else [])

    def ordered(self, fitting: Iterable[FleetRow]) -> list[FleetRow]:
        return fleet_rows.ordered(fitting, self.sort, down=self.down)

    def path(self, **changes: Any) -> str:
        """Return the URL, with changes."""
        question = replace(self, **changes)
        given = {
            "domain": question.domain,
            "state": question.state,
            "sort": ("-" if question.down else "") + question.sort,
            "page": str(question.page),
            "refresh": "on" if question.refresh else "off",
        }
        usual = {"domain": "", "state": "", "sort": "state", "page": "1", "refresh": "on"}
        query = urlencode({key: value for key, value in given.items() if value != usual[key]})
        return f"{PATH}?{query}" if query else PATH


def question_of(query: Mapping[str, str]) -> Question:
    """Parse a query, ignoring invalid parts."""
    sort = query.get("sort", "")
    state, page = query.get("state", ""), query.get("page", "")
    by = sort.removeprefix("-")
    number = int(page) if len(page) <= _PAGES and page.isascii() and page.isdigit() else 1
    return Question(
        domain=query.get("domain", "")[:_LONGEST].strip(),
        state=state if state in fleet_rows.STATES else "",
        sort=by if by in fleet_rows.SORTS else "state",
        down=by in fleet_rows.SORTS and sort.startswith("-"),
        page=max(1, number),
        refresh=query.get("refresh") != "off",
    )


_COLUMNS: Final = (
    ("domain", "Domain", ""),
    ("state", "State", ""),
    ("heard", "Heard", "number"),
    ("behind", "Behind", "number"),
    ("loss", "Time to first loss", "number"),
    ("accounted", "Accounted for", ""),
)
_DOWNWARDS: Final = frozenset({"heard", "behind"})
"""Columns sorted largest first."""


def fleet_page(
    known: Mapping[str, Any],
    rows: Sequence[FleetRow],
    fitting: Sequence[FleetRow],
    question: Question,
    now: datetime,
) -> Markup:
    """Render a page of `fitting` rows among all."""
    last = max(1, -(-len(fitting) // ROWS))
    page = min(question.page, last)
    shown = fitting[(page - 1) * ROWS : page * ROWS]
    return document(
        "Petiole fleet",
        STYLE,
        element("h1", "Fleet"),
        said(
            str(known.get("state") or "not ready yet"),
            well=known.get("state") == "well" or bool(known.get("standby")),
            about="hub: ",
        ),
        *_audit(known, rows, now),
        element("p", _counts(rows), class_="dim"),
        refreshing(now, question.refresh, question.path(refresh=not question.refresh)),
        _form(question),
        _table(shown, question) if shown else element("p", _nothing(known, rows), class_="dim"),
        _pages(question, page, last, len(fitting)),
        refresh=question.refresh,
    )


def refreshing(now: datetime, refresh: bool, path: str) -> Markup:
    """Render the time and the refresh switch."""
    sign = "&" if "?" in path else "?"
    if "refresh=" not in path and refresh:
        path += f"{sign}refresh=off"
    how, word = ("fetched again every 30 s", "Stop") if refresh else ("not fetched again", "Refresh")
    return element(
        "p", f"As of {now:%Y-%m-%d %H:%M:%S} UTC, {how}. ", element("a", word, href=path), class_="dim"
    )


def _audit(known: Mapping[str, Any], rows: Sequence[FleetRow], now: datetime) -> list[Markup]:
    """Render the audit's head."""
    audit = known.get("audit")
    if audit is None:
        return [element("p", "audit: ", element("span", "this hub has not heard of any yet", class_="old"))]
    at = datetime.fromisoformat(audit["at"])
    ago = (now - at).total_seconds()
    kind = "accounted-no" if audit["lost"] else "old" if ago > fleet_rows.OLD_AUDIT else "good"
    when = f", {fleet_rows.ago(max(0.0, ago))} ago, of {audit['lake']}"
    deep = " with contents" if audit["deep"] else ""
    never = sum(row.accounted == "never" for row in rows)
    unseen = f"; it has not seen {never} of these leaves" if never else ""
    old = " (old)" if kind == "old" else ""
    return [
        element("p", "audit: ", element("span", f"{audit['verdict']}{old}", class_=kind), when, deep, unseen),
        *(
            [element("details", element("summary", "What it said"), *_sentences(audit["findings"]))]
            if audit["lost"] and audit["findings"]
            else []
        ),
    ]


def _sentences(found: Iterable[str]) -> list[Markup]:
    return [element("p", sentence) for sentence in found]


def said(sentence: str, *, well: bool, about: str = "") -> Markup:
    """Render a coloured sentence."""
    return element("p", about, element("span", sentence, class_="good" if well else "bad"))


def leaf_path(domain: str) -> str:
    return f"{PATH}/{quote(domain, safe='')}"


def state_class(state: str) -> str:
    """Return a state's style class."""
    return state_of(state).severity.value


def _counts(rows: Iterable[FleetRow]) -> Markup:
    states = [row.state for row in rows]
    found = [f"{len(states)} leaves" if len(states) != 1 else "1 leaf"]
    for state in STATES:
        if count := states.count(state):
            link = element("a", f"{count} {state}", href=Question(state=state).path())
            found.append(join(": " if len(found) == 1 else ", ", link))
    return join(*found, ".")


def _form(question: Question) -> Markup:
    states = [
        element("option", state or "any", value=state, selected="" if state == question.state else None)
        for state in ("", *STATES)
    ]
    sort = question.path(domain="", state="", page=1, refresh=True).partition("sort=")[2]
    kept = [element("input", type="hidden", name="sort", value=sort)] if sort else []
    kept += [] if question.refresh else [element("input", type="hidden", name="refresh", value="off")]
    return element(
        "form",
        *kept,
        element("label", "Domain", element("input", name="domain", value=question.domain, maxlength="64")),
        element("label", "State", element("select", *states, name="state")),
        element("button", "Show"),
        element("a", "All", href=PATH),
        action=PATH,
        method="get",
    )


def _table(rows: Iterable[FleetRow], question: Question) -> Markup:
    heads = [_head(question, *column) for column in _COLUMNS]
    table = element(
        "table",
        element("thead", element("tr", *heads, element("th", "What", scope="col"))),
        element("tbody", *map(_row, rows)),
    )
    return element("div", table, class_="wide")


def _head(question: Question, sort: str, words: str, kind: str) -> Markup:
    now = question.sort == sort
    down = not question.down if now else sort in _DOWNWARDS
    order = ("descending" if question.down else "ascending") if now else None
    mark = (" ↓" if question.down else " ↑") if now else ""
    link = element("a", words, href=question.path(sort=sort, down=down, page=1))
    return element("th", link, mark, scope="col", class_=kind or None, aria_sort=order)


def _row(row: FleetRow) -> Markup:
    return element(
        "tr",
        element("td", element("a", row.domain, href=leaf_path(row.domain)), class_="name domain"),
        element("td", row.state, class_=f"word {state_class(row.state)}"),
        element("td", fleet_rows.ago(row.heard), class_="number", data_label="Heard"),
        element("td", fleet_rows.number(row.behind), class_="number", data_label="Behind"),
        element("td", fleet_rows.until(row.loss), class_="number", data_label="Time to first loss"),
        element(
            "td",
            fleet_rows.accounted(row) + ("" if row.audited is None else " ago"),
            class_=f"word accounted-{row.accounted}",
            data_label="Accounted for",
        ),
        element("td", fleet_rows.words(row)),
    )


def _nothing(known: Mapping[str, Any], rows: Sequence[FleetRow]) -> str:
    if not known:
        return "The hub's NATS server has not answered yet."
    if known.get("standby"):
        return "This machine stands by; the page of the one that leads has the leaves."
    return "No leaf fits." if rows else "The configuration of this hub has no leaf."


def _pages(question: Question, page: int, last: int, count: int) -> Markup:
    if last == 1:
        return Markup()
    found = [element("span", f"{count:,} leaves, page {page} of {last}", class_="dim")]
    steps = ((1, "First", page > 1), (page - 1, "Back", page > 1), (page + 1, "Next", page < last))
    found += [
        element("a", words, href=question.path(page=number))
        for number, words, there in (*steps, (last, "Last", page < last))
        if there
    ]
    return element("nav", *found, aria_label="Pages")
