"""Handles OTLP calls over gRPC. Needs the extra `otlp-grpc`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc
import structlog
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from agent import contract
from agent.base.http.access import shows
from agent.base.metrics import Metrics
from agent.leaf.inputs.http.bodies import Bodies, Body, Hold
from agent.leaf.inputs.http.limits import BodyLimits
from agent.leaf.inputs.http.otlp import DecodedExport, OtlpLogsRoute, OtlpRoute
from agent.leaf.inputs.http.request import RequestHead, body_key
from agent.leaf.inputs.http.responses import STORED, HttpError, at_fault, failed, of_outcome
from agent.leaf.inputs.http.route import RouteSettings
from agent.leaf.inputs.otlp_grpc import OtlpGrpcOptions
from agent.leaf.intake import Chunk, Intake

NAME: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
LOGS_NAME: Final = "opentelemetry.proto.collector.logs.v1.LogsService"
ROUTES: Final[Mapping[str, type[OtlpRoute]]] = {NAME: OtlpRoute, LOGS_NAME: OtlpLogsRoute}
"""Readers of a service's exports."""
_KEY: Final = "idempotency-key"
_MAX_DETAILS: Final = 1000
_CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By status of the `http` input; too large is not RESOURCE_EXHAUSTED, which some exporters retry."""


class ExportService:
    """Handles one service of an input with shared `bodies`; await `finish` at the end."""

    def __init__(
        self,
        name: str,
        options: OtlpGrpcOptions,
        token: bytes | None,
        intake: Intake,
        metrics: Metrics,
        log: structlog.stdlib.BoundLogger,
        bodies: Bodies,
    ) -> None:
        self._name = name
        self._options = options
        self._token = token
        self._intake = intake
        self._metrics = metrics
        self._log = log
        self._scope = contract.request_scope(options.name)
        self._route = ROUTES[name](
            RouteSettings(intake.domain, options.body, device_tag="", otlp=True, success=STORED)
        )
        self._bodies = bodies
        self._storing: set[asyncio.Task[None]] = set()

    async def finish(self) -> None:
        """Wait for storage without a waiting sender."""
        if self._storing:
            await asyncio.wait(self._storing)

    async def export(self, body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """Handle `Export`; aborts with a code unless all good points are surely stored."""
        given = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        hold, keyed = Hold(self._bodies), _KEY in given
        storing: asyncio.Task[None] | None = None
        try:
            decoded = await self._decode(body, given, hold)
            keyed = keyed or decoded.is_dated
            if decoded.count:
                request = self._request(body, given, decoded)
                storing = self._store(Chunk(decoded.payload, decoded.count, request))
                await asyncio.shield(storing)
            self._count_left_out(decoded)
            return decoded.export.response(False)
        except Exception as error:
            answer = of_outcome(error, keyed)
            if answer is None:
                self._log.error("export failed", exc_info=error)
                answer = failed()
        finally:
            if storing is None or storing.done():
                hold.release()
            else:
                storing.add_done_callback(lambda _: hold.release())
        self._metrics.http_refusals.labels(self._options.name, _code(answer).name).inc()
        if answer.fault is not None:
            self._metrics.invalid.labels(self._options.name, answer.fault).inc()
        await context.abort(_code(answer), answer.error[:_MAX_DETAILS], _trailers(answer))
        raise AssertionError("a call that was ended goes on")

    async def _decode(self, body: bytes, given: Mapping[str, str], hold: Hold) -> DecodedExport:
        if self._token is not None and not shows(given.get("authorization"), self._token):
            raise at_fault(401, "token", "send the token of this input: authorization: Bearer …")
        limits = BodyLimits(self._options.body, contract.MAX_BODY_BYTES)
        if len(body) > limits.body:
            text = f"the export has {len(body)} bytes, above {limits.body}{self._route.size_hint}"
            raise at_fault(413, "too_large", text)
        hold.add(len(body), unread=False)
        head = RequestHead(self._name, is_json=False, encoding=None, key=given.get(_KEY), limits=limits)
        return await self._route.decode(Body(body, limits.of(len(body)).readings), head, hold)

    def _request(
        self, body: bytes, given: Mapping[str, str], decoded: DecodedExport
    ) -> contract.Request | None:
        key = given.get(_KEY)
        if key is None:
            if not decoded.is_dated:
                return None
            key = body_key(body)
        try:
            return contract.make_request(contract.check_request_key(key), self._scope, body)
        except contract.ContractError as error:
            raise at_fault(400, "key", str(error)) from None

    def _store(self, chunk: Chunk) -> asyncio.Task[None]:
        """Start storing; a cancelled call does not stop it."""
        storing = asyncio.create_task(self._intake.submit(self._options.name, self._options.class_, chunk))
        self._storing.add(storing)
        storing.add_done_callback(self._settled)
        return storing

    def _settled(self, storing: asyncio.Task[None]) -> None:
        self._storing.discard(storing)
        if not storing.cancelled():
            storing.exception()  # the caller has it, unless it gave up

    def _count_left_out(self, decoded: DecodedExport) -> None:
        name = self._options.name
        for kind, count in decoded.left_out.items():
            self._metrics.left_out.labels(name, kind).inc(count)
        if decoded.left_out:
            self._metrics.invalid.labels(name, self._route.left_out_fault).inc(sum(decoded.left_out.values()))


def _code(error: HttpError) -> grpc.StatusCode:
    return _CODES.get(error.status, grpc.StatusCode.INTERNAL)


def _trailers(error: HttpError) -> tuple[tuple[str, Any], ...]:
    """Return retry metadata: `RetryInfo` for Python's exporter, within `google.rpc.Status` for others."""
    wait = error.headers.get("Retry-After")
    if wait is None:
        return ()
    retry, details = RetryInfo(retry_delay=Duration(seconds=int(wait))), Packed()
    details.Pack(retry)
    status = Status(code=_code(error).value[0], message=error.error[:_MAX_DETAILS], details=[details])
    return (
        ("grpc-status-details-bin", status.SerializeToString()),
        ("google.rpc.retryinfo-bin", retry.SerializeToString()),
    )
