"""Accepts OTLP over HTTP. `parse` reads metrics, `logs` reads logs."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from agent.base.clock import wall_ns
from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.wait import Pacer
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.limits import EXPANSION, BodyLimits, whole_limits
from agent.leaf.inputs.http.otlp.export import ExportTooLargeError, OtlpExport, status_message
from agent.leaf.inputs.http.otlp.logs import LogsExport
from agent.leaf.inputs.http.otlp.parse import Export
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import HttpError, at_fault
from agent.leaf.inputs.http.route import DecodedBody, Route, RouteSettings

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


class DecodedExport(DecodedBody, kw_only=True):
    """Readings of an export."""

    export: OtlpExport


class OtlpRoute(Route[DecodedExport]):
    """Accepts metrics as protobuf or JSON; 200 reports rejected points. Caches attributes."""

    media_type = _PROTOBUF
    is_repeat_by_body = True
    size_hint = "; export fewer points at a time"
    left_out_fault = "rejected_points"
    export_type: ClassVar[type[OtlpExport]] = Export

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        self._sources = Sources(settings.domain)

    def limits(self, *, is_json: bool) -> BodyLimits:
        return whole_limits(self._settings.body)

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
                f"attributes{self.size_hint}",
                unread=False,
            ) from None
        hold.give_back(expanded)
        hold.add(export.size, unread=False)
        return DecodedExport(export.payload, export.count, export.left_out, export.is_dated, export=export)

    async def _read(self, body: Body, head: RequestHead) -> OtlpExport:
        now_ns = wall_ns()
        if not head.is_json:
            return self.export_type(body.data, False, self._sources, now_ns, body.room)
        # JSON takes up to a second for a megabyte: in a thread, and one at a time, for others need threads.
        async with self._sources.reading:
            make = self.export_type
            return await asyncio.to_thread(make, body.data, True, self._sources, now_ns, body.room)

    def respond(self, decoded: DecodedExport, head: RequestHead) -> Response:
        content_type = _JSON if head.is_json else _PROTOBUF
        return Response(200, decoded.export.response(head.is_json), content_type)

    def translate(self, error: HttpError, request: HttpRequest) -> HttpError:
        """Return the error as `google.rpc.Status` in the request's form."""
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


class OtlpLogsRoute(OtlpRoute):
    """Accepts logs."""

    size_hint = "; export fewer records at a time"
    left_out_fault = "rejected_records"
    export_type = LogsExport
