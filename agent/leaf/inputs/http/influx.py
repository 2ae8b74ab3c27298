"""Speaks to InfluxDB clients: their paths, and answers in their form.

Telegraf's outputs (plugins/outputs/influxdb and influxdb_v2) define each status' effect: version 1 drops
readings at any 4xx; version 2 retries 429 and 503 and halves at 413.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from agent.base.clock import wall_ns
from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.line_cache import PRECISIONS, LineCache
from agent.leaf.inputs.formats.line_protocol import Parsing
from agent.leaf.inputs.formats.ndjson import BodyTooLargeError
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.limits import MAX_QUERY_BYTES, BodyLimits, line_limits
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import NOTHING, STORED, HttpError, at_fault
from agent.leaf.inputs.http.route import DecodedBody, Route, RouteSettings

_V1_WRITE: Final = "/write"
_PING, _READY = "/ping", "/ready"
_JSON: Final = "application/json"
_MAX_STATEMENTS: Final = 100
_CREATES: Final = re.compile(r"(?:create|alter)\s+(?:database|retention\s+policy)\b", re.IGNORECASE)
_DATABASES: Final = re.compile(r"show\s+databases\Z", re.IGNORECASE)
_POLICIES: Final = re.compile(r"show\s+retention\s+policies\b", re.IGNORECASE)
_VERSION: Final = {"X-Influxdb-Version": "petiole", "X-Influxdb-Build": "petiole"}
_CODES: Final = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    413: "request too large",
    422: "unprocessable entity",
    429: "too many requests",
    503: "unavailable",
}
_MAX_REASON: Final = 300
_SMALL: Final = 2048
"""Bytes of a body that takes few milliseconds even in the worst case."""
_FEW: Final = 16 * 1024
"""Bytes of its readings, not counted in the common limit."""


def greet(request: HttpRequest, stopping: bool) -> Response:
    """Answer `/ping`, `/health` and `/ready`."""
    if request.path == _PING:
        if request.query().get("verbose", "0") not in ("", "0", "false"):
            return Response(200, b'{"version":"petiole"}', _JSON, headers=_VERSION)
        return Response(204, headers=_VERSION)
    message = "the agent is stopping" if stopping else "ready for writes"
    status = "fail" if stopping else "pass"
    content: dict[str, Any] = {"name": "petiole", "status": status, "message": message, "checks": []}
    if request.path == _READY:
        content["status"] = "stopping" if stopping else "ready"
    return Response(503 if stopping else 200, json.dumps(content).encode(), _JSON, headers=_VERSION)


def answer(query: Mapping[str, str]) -> Response:
    """Answer the statements with which version 1 clients begin. Raises `HttpError` for other statements."""
    statements = [text.strip() for text in query.get("q", "").split(";") if text.strip()]
    if not statements:
        raise at_fault(400, "query", 'missing required parameter "q"', unread=False)
    results = [
        {"statement_id": number, **_result(text, query.get("db"))}
        for number, text in enumerate(statements[:_MAX_STATEMENTS])
    ]
    return Response(200, json.dumps({"results": results}).encode(), _JSON, headers=_VERSION)


def _result(statement: str, database: str | None) -> dict[str, Any]:
    if _CREATES.match(statement):
        return {}
    if _DATABASES.match(statement):
        return _series("databases", ["name"], [] if database is None else [[database]])
    if _POLICIES.match(statement):
        columns = ["name", "duration", "shardGroupDuration", "replicaN", "default"]
        return _series("", columns, [["autogen", "0s", "168h0m0s", 1, True]])
    raise at_fault(
        400, "query", f"{statement[:60]!r} is not answered here; query the tables of the hub", unread=False
    )


def _series(name: str, columns: list[str], values: list[list[Any]]) -> dict[str, Any]:
    named = {"name": name} if name else {}
    return {"series": [{**named, "columns": columns, **({"values": values} if values else {})}]}


class QueryRoute(Route[DecodedBody]):
    """Accepts `/query` posts of version 1, with statements in body or URL."""

    def limits(self, *, is_json: bool) -> BodyLimits:
        return line_limits(MAX_QUERY_BYTES)

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedBody:
        try:
            posted = dict(parse_qsl(body.data.decode(), max_num_fields=_MAX_STATEMENTS))
        except ValueError:
            posted = {}
        asked = {**dict(parse_qsl(head.target.partition("?")[2])), **posted}
        return AnsweredQuery(b"", 0, response=answer(asked))

    def respond(self, decoded: DecodedBody, head: RequestHead) -> Response:
        assert isinstance(decoded, AnsweredQuery)
        return decoded.response


class AnsweredQuery(DecodedBody, kw_only=True):
    """An answer without readings."""

    response: Response


class DecodedLines(DecodedBody, kw_only=True):
    """Readings of line protocol."""

    parsing: Parsing


class InfluxRoute(Route[DecodedLines]):
    """Accepts line protocol: good lines are stored, 400 lists bad ones. Caches names between requests.

    An empty write, as of Home Assistant, is 204 in version 1 and 400 in version 2, as in InfluxDB.
    """

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        self._lines = LineCache(settings.domain, settings.device_tag)

    def time_unit(self, request: HttpRequest) -> int:
        precision = request.query().get("precision", "")
        unit = PRECISIONS.get(precision)
        if unit is None:
            names = ", ".join(name for name in PRECISIONS if name)
            raise at_fault(400, "precision", f"precision {precision!r:.20} is not one of {names}")
        return unit

    def decode_at_once(self, body: bytes, head: RequestHead) -> DecodedLines | None:
        if len(body) > _SMALL:
            return None
        parsing = Parsing(body, self._lines, head.time_unit, wall_ns(), min(_FEW, head.limits.readings))
        try:
            while parsing.step():
                pass
        except BodyTooLargeError:
            return None
        return None if parsing.bad or not parsing.count else _decoded(parsing)

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedLines:
        parsing = Parsing(body.data, self._lines, head.time_unit, wall_ns(), body.room)
        pacer = Pacer()
        try:
            while parsing.step():
                await pacer.give_way()
        except BodyTooLargeError:
            raise at_fault(
                413,
                "too_large",
                f"the readings of this body would be above {body.room} bytes, for each repeats the tags of "
                "its line; send fewer lines at a time",
                unread=False,
            ) from None
        is_first = head.target.partition("?")[0] == _V1_WRITE
        if parsing.hopeless or not (parsing.count or (is_first and not parsing.bad)):
            raise refused_lines(parsing)
        hold.add(parsing.size, unread=False)
        return _decoded(parsing)

    def respond(self, decoded: DecodedLines, head: RequestHead) -> Response:
        if decoded.parsing.bad:
            raise refused_lines(decoded.parsing)
        return STORED  # its clients know no 202

    def translate(self, error: HttpError, request: HttpRequest) -> HttpError:
        """Return the error in both versions' form. A full stream is 503 at `/write`, where Telegraf drops
        after 429.
        """
        status = 503 if error.status == 429 and request.path == _V1_WRITE else error.status
        details = {"code": _CODES.get(status, "internal error"), "message": error.error, **error.details}
        return HttpError(
            status,
            error.error,
            fault=error.fault,
            headers=error.headers,
            details=details,
            unread=error.unread,
        )


def _decoded(parsing: Parsing) -> DecodedLines:
    return DecodedLines(parsing.payload, parsing.count, parsing.left_out, parsing=parsing)


def refused_lines(parsing: Parsing) -> HttpError:
    """Return 400 that lists the bad lines; the others are stored."""
    if not parsing.bad:
        return at_fault(400, "empty", "writing requires points: the body holds none", unread=False)
    number, reason = parsing.bad[0]
    dropped = len(parsing.bad) + parsing.more
    stored = 0 if parsing.hopeless else parsing.count
    failure = "partial write: unable to parse" if stored else "unable to parse"
    rest = f"the other lines are stored ({stored} readings)" if stored else NOTHING
    count = f"at least {dropped}" if parsing.hopeless else f"{dropped}"
    return HttpError(
        400,
        f"{failure} line {number}: {reason[:_MAX_REASON]} dropped={count}; {rest}",
        fault="bad_lines",
        details={
            "line": number,
            "lines": [{"line": line, "reason": text[:_MAX_REASON]} for line, text in parsing.bad],
            "more": parsing.more,
        },
    )
