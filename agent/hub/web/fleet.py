"""The fleet pages of the hub's admin server, over what the registrar knows: `/fleet`, `/fleet/<domain>`, and
`/fleet.json` with the same rows for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp.web import Response

from agent.hub import fleet_rows
from agent.hub.web.fleet_page import PATH, fleet_page, question_of
from agent.hub.web.html import POLICY, Markup
from agent.hub.web.leaf_page import leaf_page, unknown_page

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
