"""TODO: what this module is."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp.web import BaseRequest, Response

from agent.base.wait import Pacer
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.otlp.parse import Export, ExportTooLargeError, status_message
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import SERVER, HttpError, at_fault

_PROTOBUF: Final = "application/x-protobuf"

_JSON: Final = "application/json"

_APART: Final = 32
"""How many times its size a message may need in memory: an empty part of it is two bytes."""


async def parse(body: Body, asked: RequestHead, sources: Sources, now_ns: int, hold: Hold) -> Export:
    """An export taken apart, with a breath now and then for whatever else the agent does. Raises
    `HttpError`."""
    apart = _APART * len(body.data)
    hold.add(apart, unread=False)
    pacer = Pacer()
    try:
        export = await _read(body, asked, sources, now_ns)
        while export.step():
            await pacer.give_way()
    except ValueError as error:
        raise at_fault(400, "otlp", str(error), unread=False) from None
    except ExportTooLargeError:
        raise at_fault(
            413,
            "too_large",
            f"the readings of this export would be above {body.room} bytes, for each repeats its attributes; "
            "export fewer points at a time",
            unread=False,
        ) from None
    hold.give_back(apart)
    hold.add(export.size, unread=False)
    return export


async def _read(body: Body, asked: RequestHead, sources: Sources, now_ns: int) -> Export:
    if not asked.is_json:
        return Export(body.data, False, sources, now_ns, body.room)
    # JSON takes up to a second for a megabyte. In a thread, and one at a time, for others need threads too.
    async with sources.reading:
        return await asyncio.to_thread(Export, body.data, True, sources, now_ns, body.room)


def response(export: Export, asked: RequestHead) -> Response:
    """200, which says what was rejected."""
    kind = _JSON if asked.is_json else _PROTOBUF
    return Response(status=200, body=export.response(asked.is_json), headers={**SERVER, "Content-Type": kind})


def translated(answer: HttpError, request: BaseRequest) -> HttpError:
    """A refusal as exporters read it: a `google.rpc.Status` in the form of the request."""
    if request.headers.get("Content-Type", "").startswith(_JSON):
        return HttpError(
            answer.status,
            answer.error,
            fault=answer.fault,
            headers=answer.headers,
            details={"message": answer.error, **answer.details},
            unread=answer.unread,
        )
    answer.body, answer.content_type = status_message(answer.error), _PROTOBUF
    return answer
