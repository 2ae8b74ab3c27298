"""Serves `/fleet`, `/fleet/<domain>` and `/fleet.json` on the hub's admin server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from agent.base.http.large_answers import Shared, blocks_of
from agent.base.http.response import Response
from agent.base.wait import paced
from agent.contract import AuditedLeaf
from agent.hub import fleet_rows
from agent.hub.fleet_rows import FleetRow
from agent.hub.web.fleet_page import PATH, Question, fleet_page, question_of
from agent.hub.web.html import POLICY, Markup
from agent.hub.web.leaf_page import leaf_page, unknown_page

_JSON: Final = f"{PATH}.json"


class _Fleet(Struct):
    """All leaves at one moment, sorted; `written` answers `of`."""

    known: Mapping[str, Any]
    now: datetime
    rows: Sequence[FleetRow]
    of: Question | None = None
    written: Sequence[bytes] = ()


class FleetPages:
    """Renders pages of `status()` and `audited` leaves; shared and paced, as large fleets take a second."""

    paths: Final = (PATH, f"{PATH}/<domain>", _JSON)

    def __init__(
        self, status: Callable[[], Mapping[str, Any]], audited: Callable[[str], AuditedLeaf | None]
    ) -> None:
        self._status, self._audited = status, audited
        self._fleet = Shared(self._look)
        self._turn = asyncio.Lock()

    async def answer(self, path: str, query: Mapping[str, str]) -> Response | None:
        question, domain = question_of(query), path.removeprefix(f"{PATH}/")
        if path == PATH:
            return await self._fleet_page(question)
        if path == _JSON:
            return await self._fleet_json(question)
        if domain == path:
            return None
        known, now = self._status()["fleet"], datetime.now(UTC)
        return _leaf_page(known, domain, now, self._audited(domain), refresh=question.refresh)

    async def _look(self) -> _Fleet:
        known, now = self._status()["fleet"], datetime.now(UTC)
        return _Fleet(known, now, fleet_rows.by_gravity(await paced(fleet_rows.each_row(known, now))))

    async def _fleet_page(self, question: Question) -> Response:
        fleet = await self._fleet.get()
        async with self._turn:
            fitting = question.ordered(await paced(question.fitting(fleet.rows)))
            return _page(fleet_page(fleet.known, fleet.rows, fitting, question, fleet.now))

    async def _fleet_json(self, question: Question) -> Response:
        fleet = await self._fleet.get()
        async with self._turn:
            if fleet.of != question:
                fitting = question.ordered(await paced(question.fitting(fleet.rows)))
                fleet.of, fleet.written = question, await blocks_of(_json(fleet.known, fitting))
            return Response(200, content_type="application/json", blocks=fleet.written)


def _json(known: Mapping[str, Any], rows: Iterable[FleetRow]) -> Iterator[bytes]:
    head = {"hub": known.get("state", ""), "audit": known.get("audit"), "leaves": []}
    yield msgspec.json.encode(head).removesuffix(b"]}")
    for number, row in enumerate(rows):
        yield (b"," if number else b"") + msgspec.json.encode(row.as_json())
    yield b"]}"


def _leaf_page(
    known: Mapping[str, Any], domain: str, now: datetime, found: AuditedLeaf | None, *, refresh: bool
) -> Response:
    leaf = known.get("leaves", {}).get(domain)
    if leaf is None:
        return _page(unknown_page(domain), 404)
    (row,) = fleet_rows.rows_of({"leaves": {domain: leaf}}, now)
    return _page(leaf_page(row, str(leaf.get("announced_at", "")), now, found, refresh=refresh))


def _page(text: Markup, status: int = 200) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(status, text.encode(), "text/html; charset=utf-8", headers)
