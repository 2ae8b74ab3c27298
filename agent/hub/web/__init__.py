"""The fleet pages of the hub's admin server, over what the registrar knows: `/fleet`, `/fleet/<domain>`, and
`/fleet.json` with the same rows for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from aiohttp.web import Response

from agent.contract import AuditedLeaf
from agent.hub import fleet_rows
from agent.hub.web.fleet_page import PATH, Question, fleet_page, question_of
from agent.hub.web.html import POLICY, Markup
from agent.hub.web.leaf_page import leaf_page, unknown_page

_JSON: Final = f"{PATH}.json"


class FleetPages:
    """Pages of the fleet in what `status()` says; `audited` has what the newest audit found of a leaf, with
    its hours."""

    paths: Final = (PATH, f"{PATH}/<domain>", _JSON)

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], audited: Callable[[str], AuditedLeaf | None]
    ) -> None:
        self._status, self._audited = status, audited

    def asked(self, path: str, query: Mapping[str, str]) -> Callable[[], Response] | None:
        """Makes the page at a path of what is known now, in any thread: a large fleet takes a second. None
        where there is no page."""
        domain = path.removeprefix(f"{PATH}/")
        if path not in (PATH, _JSON) and domain == path:
            return None
        known, now, question = self._status()["fleet"], fleet_rows.now(), question_of(query)
        if path in (PATH, _JSON):
            return lambda: _fleet_page(known, question, now, as_json=path == _JSON)
        found = self._audited(domain)
        return lambda: _leaf_page(known, domain, now, found, refresh=question.refresh)

    def answer(self, path: str, query: Mapping[str, str]) -> Response | None:
        """The page at a path, None where there is none."""
        page = self.asked(path, query)
        return None if page is None else page()


def _leaf_page(
    known: Mapping[str, Any], domain: str, now: datetime, found: AuditedLeaf | None, *, refresh: bool
) -> Response:
    leaf = known.get("leaves", {}).get(domain)
    if leaf is None:
        return _page(unknown_page(domain), 404)
    (row,) = fleet_rows.rows_of({"leaves": {domain: leaf}}, now)
    return _page(leaf_page(row, str(leaf.get("announced_at", "")), now, found, refresh=refresh))


def _fleet_page(known: Mapping[str, Any], question: Question, now: datetime, *, as_json: bool) -> Response:
    rows = fleet_rows.rows_of(known, now)
    if not as_json:
        return _page(fleet_page(known, rows, question, now))
    # A leaf at a time: while all are encoded at once no other thread runs.
    leaves = b",".join(msgspec.json.encode(row.as_json()) for row in question.rows(rows))
    head = msgspec.json.encode({"hub": known.get("state", ""), "audit": known.get("audit"), "leaves": []})
    return Response(body=head.removesuffix(b"]}") + leaves + b"]}", content_type="application/json")


def _page(text: Markup, status: int = 200) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(status=status, text=text, content_type="text/html", charset="utf-8", headers=headers)
