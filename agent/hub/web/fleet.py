"""The fleet pages of the hub's admin server, over what the registrar knows: `/fleet`, `/fleet/<domain>`, and
`/fleet.json` with the same rows for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from aiohttp.web import Response

from agent.hub import fleet_rows
from agent.hub.fleet_rows import FleetRow
from agent.hub.web.fleet_page import PATH, fleet_page, question_of, said, state_class
from agent.hub.web.html import POLICY, STYLE, Markup, document, element

_COUNTS: Final = ("accepted", "stored", "refused", "refused_late", "discarded", "dead")


def leaf_page(row: FleetRow, announced_at: str, now: datetime) -> Markup:
    """A leaf: how it is, what it said of itself and when, its classes and their ledgers."""
    behind = "not known" if row.behind is None else f"{row.behind:,} messages"
    facts = [
        ("State", element("span", row.state, class_=state_class(row.state))),
        ("Link", "up" if row.linked else "down"),
        ("Last heard", f"{fleet_rows.ago(row.heard)} ago, {announced_at}" if announced_at else "never"),
        ("Behind", behind),
        ("Time to first loss", "not known" if row.loss is None else fleet_rows.until(row.loss)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in row.versions.items()) or "not known"),
        ("Machine", row.machine or "not known"),
        ("Run", row.run or "not known"),
    ]
    return document(
        f"{row.domain} - Petiole fleet",
        STYLE,
        element("nav", element("a", "Fleet", href=PATH)),
        element("h1", row.domain),
        said(row.sentence, well=row.state == "flowing"),
        element("p", f"As of {now:%Y-%m-%d %H:%M:%S} UTC.", class_="dim"),
        _facts(facts),
        *_classes(row.classes),
    )


def unknown_page(domain: str) -> Markup:
    """What is shown for a domain that the hub does not let in."""
    return document(
        "Petiole fleet",
        STYLE,
        element("nav", element("a", "Fleet", href=PATH)),
        element("h1", "No such leaf"),
        element("p", f"{domain:.80} is not among the leaves of this hub's configuration."),
    )


def _facts(facts: Iterable[tuple[str, str]]) -> Markup:
    return element(
        "dl", *(part for name, value in facts for part in (element("dt", name), element("dd", value)))
    )


def _classes(classes: Mapping[str, Any]) -> list[Markup]:
    if not classes:
        return []
    flow = ("Class", "At the hub in", "Hub has", "Leaf had", "Behind", "Time to first loss", "Sign of life")
    ledger = ("Class", "Run", *(name.replace("_", " ").capitalize() for name in _COUNTS))
    counted = {name: cls["ledger"] for name, cls in classes.items() if cls.get("ledger")}
    found = [
        element("h2", "Way to the hub"),
        _table(flow, 2, [_flow(name, cls) for name, cls in classes.items()]),
        *(element("p", f"{name}: {cls['error']}") for name, cls in classes.items() if cls.get("error")),
        element("h2", "Ledger: readings of its run, as it said last"),
    ]
    if not counted:
        return [*found, element("p", "Nothing since the hub's agent started.", class_="dim")]
    return [*found, _table(ledger, 2, [_counts(name, ledger_) for name, ledger_ in counted.items()])]


def _flow(name: str, cls: Mapping[str, Any]) -> list[str]:
    last, active = cls["last"], cls.get("active")
    return [
        name,
        str(cls["stream"]),
        f"{cls['cursor']:,}",
        "-" if last is None else f"{last:,}",
        "-" if last is None else f"{max(0, last - cls['cursor']):,}",
        fleet_rows.until(fleet_rows.loss_of(cls)),
        "-" if active is None else f"{fleet_rows.ago(active)} ago",
    ]


def _counts(name: str, ledger: Mapping[str, Any]) -> list[str]:
    return [name, str(ledger["run"]), *(f"{ledger['readings'].get(count, 0):,}" for count in _COUNTS)]


def _table(heads: Iterable[str], names: int, rows: Iterable[Iterable[str]]) -> Markup:
    """Rows under their heads; all columns but the first `names` hold numbers."""

    def cells(kind: str, values: Iterable[str]) -> list[Markup]:
        scope = "col" if kind == "th" else None
        return [
            element(kind, value, class_="name" if at < names else "number", scope=scope)
            for at, value in enumerate(values)
        ]

    table = element(
        "table",
        element("thead", element("tr", *cells("th", heads))),
        element("tbody", *(element("tr", *cells("td", row)) for row in rows)),
    )
    return element("div", table, class_="wide")


_JSON: Final = f"{PATH}.json"


class FleetPages:
    """Pages of the fleet in what `status()` says."""

    paths: Final = (PATH, f"{PATH}/<domain>", _JSON)

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def answer(self, path: str, query: Mapping[str, str]) -> Response | None:
        """The page at a path, None where there is none."""
        domain = path.removeprefix(f"{PATH}/")
        if path not in (PATH, _JSON) and domain == path:
            return None
        known, now = self._status()["fleet"], fleet_rows.now()
        if path not in (PATH, _JSON):
            leaf = known.get("leaves", {}).get(domain)
            if leaf is None:
                return _page(unknown_page(domain), 404)
            (row,) = fleet_rows.rows_of({"leaves": {domain: leaf}}, now)
            return _page(leaf_page(row, str(leaf.get("announced_at", "")), now))
        question, rows = question_of(query), fleet_rows.rows_of(known, now)
        if path == PATH:
            return _page(fleet_page(known, rows, question, now))
        leaves = [row.as_json() for row in question.rows(rows)]
        body = msgspec.json.encode({"hub": known.get("state", ""), "leaves": leaves})
        return Response(body=body, content_type="application/json")


def _page(text: Markup, status: int = 200) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(status=status, text=text, content_type="text/html", charset="utf-8", headers=headers)
