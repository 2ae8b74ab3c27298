"""OTLP over HTTP: an export of OpenTelemetry from its body to its answer. `agent.leaf.inputs.http.otlp.parse`
knows what is in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from agent.base.clock import wall_ns
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import MAX_ARRAY_BYTES
from agent.leaf.inputs.http.framing import HttpRequest
from agent.leaf.inputs.http.otlp.parse import Export, ExportTooLargeError, status_message
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.request import Body, Hold, RequestHead
from agent.leaf.inputs.http.responses import HttpError, Response, at_fault
from agent.leaf.inputs.http.routes import DecodedBody, Route, RouteSettings

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
EXPANSION: Final = 32
"""How many times its size a message may need in memory: an empty part of it is two bytes."""


@dataclass(slots=True, kw_only=True)
class DecodedExport(DecodedBody):
    """The readings of an export."""

    export: Export


class OtlpRoute(Route[DecodedExport]):
    """Exports of metrics, as protobuf or JSON: the good points are stored and 200 says what was rejected.
    Remembers attributes from one export to the next."""

    media_type = _PROTOBUF
    size_hint = "; export fewer points at a time"
    left_out_fault = "rejected_points"

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        self._sources = Sources(settings.domain)

    def limit(self, *, is_json: bool) -> int:
        return min(self._settings.body, MAX_ARRAY_BYTES)

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedExport:
        expanded = EXPANSION * len(body.data)
        hold.add(expanded, unread=False)
        pacer = Pacer()
        try:
            export = await self._read(body, head)
            while export.step():
                await pacer.give_way()
        except ValueError as error:
            raise at_fault(400, "otlp", str(error), unread=False) from None
        except ExportTooLargeError:
            raise at_fault(
                413,
                "too_large",
                f"the readings of this export would be above {body.room} bytes, for each repeats its "
                "attributes; export fewer points at a time",
                unread=False,
            ) from None
        hold.give_back(expanded)
        hold.add(export.size, unread=False)
        return DecodedExport(export.payload, export.count, export.left_out, export=export)

    async def _read(self, body: Body, head: RequestHead) -> Export:
        now_ns = wall_ns()
        if not head.is_json:
            return Export(body.data, False, self._sources, now_ns, body.room)
        # JSON takes up to a second for a megabyte: in a thread, and one at a time, for others need threads.
        async with self._sources.reading:
            return await asyncio.to_thread(Export, body.data, True, self._sources, now_ns, body.room)

    def respond(self, decoded: DecodedExport, head: RequestHead) -> Response:
        content_type = _JSON if head.is_json else _PROTOBUF
        return Response(200, decoded.export.response(head.is_json), content_type)

    def translate(self, error: HttpError, request: HttpRequest) -> HttpError:
        """The error as exporters read it: a `google.rpc.Status` in the form of the request."""
        if request.headers.get("content-type", "").startswith(_JSON):
            return HttpError(
                error.status,
                error.error,
                fault=error.fault,
                headers=error.headers,
                details={"message": error.error, **error.details},
                unread=error.unread,
            )
        error.body, error.content_type = status_message(error.error), _PROTOBUF
        return error
