"""How InfluxDB's clients are spoken to: the paths that they write to and ask, and answers in the form that
they read. What each status does to them is in Telegraf's outputs (plugins/outputs/influxdb and influxdb_v2):
that for version 1 drops its readings at every 4xx, that for version 2 comes back after 429 and 503 and halves
at 413."""

from __future__ import annotations

import json
from typing import Any, Final

from aiohttp.web import BaseRequest, Response

from agent.base.wait import Pacer
from agent.leaf.inputs.formats.line_protocol import PRECISIONS, LineProtocol, Parsing
from agent.leaf.inputs.formats.ndjson import BodyTooLargeError
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.responses import NOTHING, SERVER, HttpError, at_fault

V1_WRITE: Final = "/write"
_PING: Final = "/ping"
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


def greet(request: BaseRequest, stopping: bool) -> Response:
    """The answer to `/ping` and `/health`."""
    if request.path == _PING:
        return Response(status=204, headers={**SERVER, **_VERSION})
    message = "the agent is stopping" if stopping else "ready for writes"
    status = "fail" if stopping else "pass"
    told: dict[str, Any] = {"name": "petiole", "status": status, "message": message, "checks": []}
    return Response(
        status=503 if stopping else 200,
        body=json.dumps(told).encode(),
        headers={**SERVER, **_VERSION, "Content-Type": "application/json"},
    )


def unit_of(request: BaseRequest) -> int:
    """Nanoseconds of one step of the times in a body; raises `HttpError`."""
    precision = request.query.get("precision", "")
    unit = PRECISIONS.get(precision)
    if unit is None:
        known = ", ".join(name for name in PRECISIONS if name)
        raise at_fault(400, "precision", f"precision {precision!r:.20} is not one of {known}")
    return unit


async def parse(to: LineProtocol, body: Body, unit: int, now_ns: int, hold: Hold) -> Parsing:
    """A body taken apart, with a breath now and then for whatever else the agent does. Raises `HttpError`
    when none of it can be stored."""
    parsing = Parsing(body.data, to, unit, now_ns, body.room)
    pacer = Pacer()
    try:
        while parsing.step():
            await pacer.give_way()
    except BodyTooLargeError:
        raise at_fault(
            413,
            "too_large",
            f"the readings of this body would be above {body.room} bytes, for each repeats the tags of its "
            "line; send fewer lines at a time",
            unread=False,
        ) from None
    if parsing.hopeless or not parsing.count:
        raise refused_lines(parsing)
    hold.add(parsing.size, unread=False)
    return parsing


def refused_lines(parsing: Parsing) -> HttpError:
    """400 that names the lines at fault; the others, if any, are stored."""
    if not parsing.bad:
        return at_fault(400, "empty", "writing requires points: the body holds none", unread=False)
    number, reason = parsing.bad[0]
    dropped = len(parsing.bad) + parsing.more
    stored = 0 if parsing.hopeless else parsing.count
    what = "partial write: unable to parse" if stored else "unable to parse"
    rest = f"the other lines are stored ({stored} readings)" if stored else NOTHING
    count = f"at least {dropped}" if parsing.hopeless else f"{dropped}"
    return HttpError(
        400,
        f"{what} line {number}: {reason[:_MAX_REASON]} dropped={count}; {rest}",
        fault="bad_lines",
        details={
            "line": number,
            "lines": [{"line": one, "reason": why[:_MAX_REASON]} for one, why in parsing.bad],
            "more": parsing.more,
        },
    )


def translated(answer: HttpError, path: str) -> HttpError:
    """An answer in the words of both versions of the interface. A stream that is full is 503 at `/write`,
    where 429 would make Telegraf drop what it has."""
    status = 503 if answer.status == 429 and path == V1_WRITE else answer.status
    details = {"code": _CODES.get(status, "internal error"), "message": answer.error, **answer.details}
    return HttpError(
        status,
        answer.error,
        fault=answer.fault,
        headers=answer.headers,
        details=details,
        unread=answer.unread,
    )
