"""OpenTelemetry's own SDK exports over gRPC to the `otlp_grpc` input."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricExportResult

from agent.base.metrics import Metrics
from agent.config import Size
from agent.demo.loopback import free_port
from agent.leaf.inputs.otlp_grpc import OtlpGrpcOptions
from agent.leaf.inputs.otlp_grpc.input import OtlpGrpcInput
from agent.leaf.inputs.otlp_grpc.service import LOGS_NAME, NAME
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.certificates import self_signed
from tests.harness.http_harness import ServedInput
from tests.harness.otlp import export_by_sdk, log_by_sdk, seen_in
from tests.harness.wait import until

NS = 1_790_000_000_000_000_000


class Served(ServedInput):
    """A running input, and channels to it."""

    async def export(self, body: bytes, **metadata: str) -> Any:
        """The answer to one call; metadata with `_` for `-`."""
        named = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_unary(f"/{NAME}/Export")
            return ExportMetricsServiceResponse.FromString(await call(body, metadata=named, timeout=30))

    async def refusal(self, body: bytes, **metadata: str) -> grpc.aio.AioRpcError:
        """The error that a call ends with."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.export(body, **metadata)
        error: grpc.aio.AioRpcError = raised.value
        return error


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Served]:
    served = Served("otlp_grpc", free_port())
    made = OtlpGrpcInput(OtlpGrpcOptions(listen=f"127.0.0.1:{served.port}", **options), served.metrics)
    async with served.running(made):
        yield served


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


def body(*values: float, ns: int = NS, shared: str = "", **attributes: str) -> bytes:
    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    if shared:
        of_resource.resource.attributes.add(key="shared").value.string_value = shared
    metric = of_resource.scope_metrics.add().metrics.add(name="m")
    for value in values:
        point = metric.gauge.data_points.add(as_double=value, time_unix_nano=ns)
        for name, text in attributes.items():
            point.attributes.add(key=name).value.string_value = text
    return bytes(request.SerializeToString())


def export_a_counter(endpoint: str, **options: Any) -> MetricExportResult:
    exporter = OTLPMetricExporter(endpoint, **options)
    return export_by_sdk(exporter, lambda meter: meter.create_counter("strokes").add(3, {"side": "left"}))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_the_official_exporter_is_answered_once_its_points_are_stored(
    served: Served, compression: grpc.Compression
) -> None:
    served.core.open.clear()
    url = f"http://127.0.0.1:{served.port}"
    exporting = asyncio.create_task(
        asyncio.to_thread(export_a_counter, url, insecure=True, compression=compression)
    )
    await until(lambda: served.core.waiting == 1)
    assert not exporting.done(), "answered before it is stored"
    served.core.open.set()
    assert await exporting is MetricExportResult.SUCCESS
    (row,) = served.core.rows()
    assert (row["device"], row["metric"], row["value"], row["tags"]["side"]) == (
        "pump-7",
        "strokes",
        3,
        "left",
    )


async def test_points_that_cannot_be_taken_are_told_and_counted(served: Served) -> None:
    partial = (await served.export(body(1, float("nan")))).partial_success
    assert (partial.rejected_data_points, "not finite" in partial.error_message) == (1, True)
    assert served.core.values() == [1]
    assert served.metric("petiole_invalid_requests_total", reason="rejected_points") == 1
    assert served.metric("petiole_left_out_parts_total", reason="value") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError(RefusalReason.FULL, "full", 7), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (RefusedError(RefusalReason.UNAVAILABLE, "away", 7), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_what_may_be_sent_again_says_when(
    served: Served, error: Exception, code: grpc.StatusCode
) -> None:
    served.core.refuse = error
    refusal = await served.refusal(body(1))
    trailers = dict(refusal.trailing_metadata())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    retry = RetryInfo()
    assert (refusal.code(), status.details[0].Unpack(retry), retry.retry_delay.seconds) == (code, True, 7)
    assert RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]) == retry
    assert "nothing of the request was stored" in refusal.details()
    assert served.metric("petiole_http_refusals_total", status=code.name) == 1


async def test_the_official_exporter_comes_back_after_a_refusal(served: Served) -> None:
    served.core.refuse = RefusedError(RefusalReason.UNAVAILABLE, "away", 1)
    exporting = asyncio.create_task(
        asyncio.to_thread(export_a_counter, f"http://127.0.0.1:{served.port}", insecure=True, timeout=60)
    )
    await until(lambda: served.metric("petiole_http_refusals_total", status="UNAVAILABLE") > 0)
    served.core.refuse = None
    assert await exporting is MetricExportResult.SUCCESS
    assert served.core.values() == [3]


async def test_an_export_that_comes_again_is_stored_once_if_its_points_have_times_or_it_has_a_key(
    served: Served,
) -> None:
    for data, given in ((body(1), {}), (body(2, ns=0), {"idempotency_key": "a"}), (body(3, ns=0), {})):
        for _ in range(2):
            await served.export(data, **given)
    assert served.core.values() == [1, 2, 3, 3]
    refusal = await served.refusal(body(4), idempotency_key="a")
    assert (refusal.code(), "another request" in refusal.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        True,
    )


async def test_an_unknown_outcome_may_be_repeated(served: Served) -> None:
    served.core.refuse = UnknownOutcomeError()
    refusal = await served.refusal(body(1))
    assert (refusal.code(), "stores it once" in refusal.details()) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        True,
    )


async def test_logs_of_the_official_sdk_are_stored(served: Served) -> None:
    exporter = OTLPLogExporter(f"http://127.0.0.1:{served.port}", insecure=True)
    await asyncio.to_thread(log_by_sdk, exporter)
    seen_in(served.core.rows())


async def test_logs_that_come_again_are_stored_once_and_what_is_rejected_is_named(served: Served) -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(time_unix_nano=NS).body.string_value = "up"
    for number in range(65):
        records[0].attributes.add(key=f"a{number}")
    records.add(observed_time_unix_nano=NS).body.string_value = "down"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        call = channel.unary_unary(f"/{LOGS_NAME}/Export")
        for _ in range(2):
            answer = ExportLogsServiceResponse.FromString(await call(request.SerializeToString()))
            assert answer.partial_success.rejected_log_records == 1
            assert "more than 63 attributes" in answer.partial_success.error_message
    assert served.core.values() == ["down"]
    assert served.metric("petiole_invalid_requests_total", reason="rejected_records") == 2


async def test_connections_beyond_the_limit_are_closed_and_one_that_ends_makes_room() -> None:
    async with serving(max_connections=2) as served, contextlib.AsyncExitStack() as stack:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)

        async def closed(writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        async def connected() -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            stack.push_async_callback(closed, writer)
            with contextlib.suppress(ConnectionError):
                writer.write(preface)
                return await reader.read(9), writer
            return b"", writer

        (first, kept), (second, _) = await connected(), await connected()
        assert b"" not in (first, second), "both are answered by the server's settings"
        assert (await connected())[0] == b""
        kept.transport.abort()

        async def has_room() -> bool:
            return (await connected())[0] != b""

        await until(has_room, "there is room again")


async def test_what_is_no_export_or_too_large_is_not_to_be_repeated() -> None:
    async with serving(body=Size(200_000)) as served:
        refusal = await served.refusal(b"\xff\xff")
        assert (refusal.code(), refusal.trailing_metadata()) == (grpc.StatusCode.INVALID_ARGUMENT, ())
        assert "no ExportMetricsServiceRequest" in refusal.details()
        refusal = await served.refusal(body(1, text="x" * 200_000))
        assert "above 200000; export fewer points" in refusal.details()
        assert (await served.refusal(bytes(5 * 2**20))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.core.stored == []


async def test_exports_that_need_more_memory_than_is_set_aside_are_sent_back() -> None:
    async with serving(body=Size(30_000), buffer=Size(960_000)) as served:
        served.core.open.clear()
        many = body(*range(900), shared="x" * 500)
        waiting = asyncio.create_task(served.export(many))
        await until(lambda: served.core.waiting == 1)
        assert (await served.refusal(many)).code() is grpc.StatusCode.UNAVAILABLE
        served.core.open.set()
        await waiting


async def test_a_call_that_is_given_up_holds_its_memory_until_it_is_stored() -> None:
    async with serving(body=Size(30_000), buffer=Size(960_000)) as served:
        served.core.open.clear()
        many = body(*range(900), shared="x" * 500)
        calling = asyncio.create_task(served.export(many))
        await until(lambda: served.core.waiting == 1)
        calling.cancel()
        await asyncio.wait([calling])
        for _ in range(20):  # the server hears of it a moment later
            assert (await served.refusal(many)).code() is grpc.StatusCode.UNAVAILABLE
        served.core.open.set()
        await until(lambda: len(served.core.stored) == 1)
        await served.export(many)


async def test_a_call_that_is_given_up_is_stored_all_the_same(served: Served) -> None:
    served.core.open.clear()
    calling = asyncio.create_task(served.export(body(1)))
    await until(lambda: served.core.waiting == 1)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await calling
    served.core.open.set()
    await until(lambda: served.core.values() == [1])


async def test_the_token_and_the_certificate_are_asked_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    cert, key = self_signed(tmp_path)
    async with serving(token_file=token, tls_cert=cert, tls_key=key) as served:
        url = f"https://127.0.0.1:{served.port}"
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        for shown, result in (("no", MetricExportResult.FAILURE), ("secret", MetricExportResult.SUCCESS)):
            headers = (("authorization", f"Bearer {shown}"),)
            found = await asyncio.to_thread(export_a_counter, url, credentials=trusted, headers=headers)
            assert found is result
        assert served.metric("petiole_http_refusals_total", status="UNAUTHENTICATED") == 1


def test_a_body_that_no_buffer_holds_is_a_mistake() -> None:
    options = OtlpGrpcOptions(body=Size(4 * 2**20))
    (problem,) = OtlpGrpcInput(options, Metrics()).check()
    assert "make it smaller, or buffer larger" in problem
