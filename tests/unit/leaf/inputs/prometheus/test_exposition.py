"""The input `prometheus`: what expositions become, and real exporters and such as misbehave."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Summary,
    generate_latest,
    start_http_server,
)
from prometheus_client.openmetrics import exposition

from agent import contract
from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.config import Seconds, Size
from agent.leaf.inputs.prometheus import PrometheusOptions
from agent.leaf.inputs.prometheus.exposition import Device, ExpositionError, SampleMapping, labels_of
from agent.leaf.inputs.prometheus.input import PrometheusInput
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.samples import Names
from agent.leaf.inputs.shared.value_memory import ValueMemory
from tests.harness.intakes import SampleCore
from tests.harness.wait import until

NOW = 1_700_000_000_000_000_000
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def reading(
    keep: list[str] | None = None, drop: list[str] | None = None, device: str | None = None
) -> SampleMapping:
    names = Names(keep or [], drop or [])
    memory = ValueMemory(None, structlog.get_logger("test"))
    return SampleMapping(names, Device(device, "edge-1"), {"instance": "x:1"}, "edge-1", NOW, memory)


def rows(text: str, content_type: str = "text/plain", **options: Any) -> list[dict[str, Any]]:
    payload = b"".join(part.payload for part in reading(**options).parts(text.encode(), content_type))
    for line in payload.splitlines():
        contract.parse_reading(line)
    return [json.loads(line) for line in payload.splitlines()]


@asynccontextmanager
async def scraping(
    core: SampleCore,
    *urls: str,
    metrics: Metrics | None = None,
    server: LocalServer = NO_SERVER,
    **options: Any,
) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    settings: dict[str, Any] = {"interval": Seconds(0.1), "timeout": Seconds(10.0), **options}
    one = PrometheusInput(PrometheusOptions(urls=list(urls), **settings), metrics or Metrics(), server)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(one.run(core, stopping))
        yield
        stopping.set()


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def exposing(answer: Answer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


@pytest.fixture
def exporter() -> Iterator[str]:
    """The official client's own server, with one metric of each kind."""
    registry = CollectorRegistry()
    Gauge("pressure_bar", "p", ["pump"], registry=registry).labels('7 "ü"\n').set(2.5)
    Gauge("broken", "b", registry=registry).set(math.nan)
    Gauge("endless", "e", registry=registry).set(math.inf)
    Counter("strokes", "s", registry=registry).inc(3)
    Histogram("took_seconds", "t", buckets=[0.1, 1], registry=registry).observe(0.5)
    Summary("size_bytes", "s", registry=registry).observe(9)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_an_exporter_of_the_official_client_is_read_whole(exporter: str) -> None:
    core, metrics = SampleCore(), Metrics()
    async with scraping(core, exporter, metrics=metrics):
        await until(lambda: bool(core.values("up")))
    instance = exporter.split("/")[2]
    (pressure,) = [row for row in core.rows if row["metric"] == "pressure_bar"][:1]
    assert pressure["tags"] == {"instance": instance, "pump": '7 "ü"\n'}
    assert (pressure["value"], pressure["device"]) == (2.5, "edge-1")
    buckets = {row["tags"]["le"]: row["value"] for row in core.rows if row["metric"] == "took_seconds_bucket"}
    assert buckets == {"0.1": 0, "1.0": 1, "+Inf": 1}
    assert core.values("took_seconds_sum")[0] == 0.5
    assert core.values("took_seconds_count")[0] == 1
    assert core.values("size_bytes_count")[0] == 1
    assert core.values("strokes_total")[0] == 3
    assert core.values("up")[0] == 1
    assert core.values("scrape_samples")[0] > 8
    assert core.values("scrape_duration_seconds")[0] > 0
    for reason in ("nan", "infinite"):
        counted = {"input": "prometheus", "reason": reason}
        assert metrics.registry.get_sample_value("petiole_invalid_requests_total", counted) or 0 >= 1
    first = core.rows[: int(core.values("scrape_samples")[0])]
    assert len({row["ts"] for row in first}) == 1


async def test_a_target_that_fails_is_down_and_holds_no_other_up(exporter: str) -> None:
    core, metrics = SampleCore(), Metrics()

    async def broken(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    with structlog.testing.capture_logs() as logged:
        async with exposing(broken) as url, scraping(core, url, exporter, metrics=metrics):
            await until(lambda: set(core.values("up")) == {0, 1})
            await until(lambda: core.values("up").count(0) > 2)
            assert metrics.registry.get_sample_value("petiole_input_up", {"input": "prometheus"}) == 0
    (told,) = [entry["event"] for entry in logged if entry["log_level"] == "warning"]
    assert told == f"{url} cannot be scraped: it answers 500, not 200"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: web.Response(body=b"a 1\n" * 2000), "too_large"),
        (lambda: web.Response(body=b"a 1\n", headers={"Content-Encoding": "gzip"}), "encoding"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "status"),
        (lambda: web.Response(body=b"<html>{ 1\n"), "exposition"),
        (lambda: web.Response(body=b"a \xff\n"), "exposition"),
        (lambda: web.Response(body=b"a 1\n", headers={"Content-Type": OPEN}), "exposition"),
    ],
)
async def test_what_is_no_exposition_is_counted_by_why(
    answer: Callable[[], web.Response], reason: str
) -> None:
    core, metrics = SampleCore(), Metrics()

    async def expose(_request: web.Request) -> web.Response:
        return answer()

    counted = {"input": "prometheus", "reason": reason}
    async with exposing(expose) as url, scraping(core, url, metrics=metrics, body=Size(4000)):
        await until(lambda: bool(core.values("up")))
        assert metrics.registry.get_sample_value("petiole_invalid_requests_total", counted)
        assert core.values("up")[0] == 0


async def test_one_that_never_answers_and_one_that_never_ends_are_given_up_in_time() -> None:
    core, metrics = SampleCore(), Metrics()
    hold = asyncio.Event()

    async def silent(_request: web.Request) -> web.Response:
        await hold.wait()
        return web.Response()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not hold.is_set():
            await response.write(b"a 1\n")
            await asyncio.sleep(0.01)
        return response

    async with exposing(silent) as one, exposing(endless) as other:
        async with scraping(core, one, other, metrics=metrics, timeout=Seconds(0.2)):
            await until(lambda: len({row["tags"]["instance"] for row in core.rows}) == 2)
        hold.set()
    assert set(core.values("up")) == {0}
    counted = {"input": "prometheus", "reason": "timeout"}
    assert metrics.registry.get_sample_value("petiole_invalid_requests_total", counted) or 0 >= 2


async def test_the_token_is_shown_and_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    seen: list[str | None] = []
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)

    async def expose(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="a 1\n")

    core = SampleCore()
    async with exposing(expose) as url, scraping(core, url, token_file=token):
        await until(lambda: bool(core.values("a")))
        token.chmod(0o644)
        await until(lambda: 0 in core.values("up"))
    assert set(seen) == {"Bearer s3cret"}


async def test_a_refused_sample_is_dropped_with_the_rest_of_its_scrape_and_the_next_goes_on() -> None:
    scrapes = 0

    async def expose(_request: web.Request) -> web.Response:
        nonlocal scrapes
        scrapes += 1
        return web.Response(text="".join(f'a{{n="{n}"}} {scrapes}\n' for n in range(2500)))

    core = SampleCore(refuse=1)
    async with exposing(expose) as url, scraping(core, url):
        await until(lambda: 3 in core.values("a"))
    assert 1 not in core.values("a")
    assert core.values("a").count(2) == 2500


def test_a_time_that_a_sample_has_is_its_own_and_any_other_that_of_the_scrape() -> None:
    told = rows("a 1 1700000000123\nb 2\n")
    assert [row["ts"] for row in told] == [1700000000.123, contract.machine_time(NOW)]


def test_open_metrics_is_read_by_its_content_type() -> None:
    text = '# TYPE a counter\na_total{x="y"} 3.0 1700000000.5 # {trace="1"} 1.0\n# EOF\n'
    (row,) = rows(text, OPEN)
    assert (row["metric"], row["value"], row["ts"]) == ("a_total", 3.0, 1700000000.5)
    assert row["tags"] == {"instance": "x:1", "x": "y"}


def test_names_are_kept_and_dropped_by_globs() -> None:
    text = "node_cpu 1\nnode_cpu_created 2\ngo_gc 3\n"
    assert [row["metric"] for row in rows(text, keep=["node_*"], drop=["*_created"])] == ["node_cpu"]
    assert [row["metric"] for row in rows(text, drop=["go_*"])] == ["node_cpu", "node_cpu_created"]


def test_labels_make_the_device_and_are_no_tags_then() -> None:
    text = 'a{rack="r",slot="3",x="y"} 1\na{rack="r"} 2\n'
    first, second = rows(text, device="{rack}-{slot}")
    assert (first["device"], first["tags"]) == ("r-3", {"instance": "x:1", "x": "y"})
    assert second["device"] == "edge-1"
    assert rows("a 1\n", device="{instance}")[0]["device"] == "x:1"
    assert rows('a{instance="own"} 1\n', device="{instance}")[0]["device"] == "own"


def test_what_the_contract_refuses_is_counted_and_the_rest_stored() -> None:
    many = ",".join(f'l{n}="x"' for n in range(65))
    parts = list(reading().parts(f"a{{{many}}} 1\nb 2\n{'c' * 256} 3\nd 1e400\ne 1 -5\n".encode(), ""))
    assert [json.loads(line)["metric"] for part in parts for line in part.payload.splitlines()] == ["b"]
    assert sum((part.left_out for part in parts), start=type(parts[0].left_out)()) == {
        "bad_sample": 3,
        "infinite": 1,
    }


def test_a_counter_keeps_the_name_that_its_exporter_gives() -> None:
    text = '# HELP ifInErrors e\n# TYPE ifInErrors counter\nifInErrors{i="1"} 3\n# TYPE temp gauge\ntemp 2\n'
    assert [row["metric"] for row in rows(text, keep=["ifInErrors", "temp"])] == ["ifInErrors", "temp"]
    assert [row["metric"] for row in rows(text, drop=["ifInErrors"])] == ["temp"]


@pytest.mark.parametrize(
    ("text", "content_type", "kept"),
    [
        ("# TYPE a gauge\na 1\nb 2\nthis is no sample\nd 4\n", "text/plain", ["a", "b"]),
        ('# TYPE a gauge\na{x="1"} 1\na{x="2"} 2\na{x= 3\na 4\n', "text/plain", ["a", "a"]),
        ('# TYPE a gauge\na{x="1"} 1\na{x="2"} 2\nno sample\n# EOF\n', OPEN, ["a", "a"]),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\nb 2\n", OPEN, ["a", "b"]),
        ("a 1\nb 2\nc \xff\n", "text/plain", ["a", "b"]),
        (" \t#  a comment\r\na 1\r\nb NaN0\n", "text/plain", ["a"]),
    ],
)
def test_what_stands_before_a_broken_line_is_stored(text: str, content_type: str, kept: list[str]) -> None:
    parts = reading().parts(text.encode("latin-1"), content_type)
    assert [json.loads(line)["metric"] for line in next(parts).payload.splitlines()] == kept
    with pytest.raises(ExpositionError, match="line "):
        next(parts)


def test_what_an_exporter_says_under_a_name_of_ours_is_another_series() -> None:
    text = 'up 0\nup{job="x"} 0\nscrape_samples 5\nother 1\n'
    assert [row["metric"] for row in rows(text)] == ["exported_up", "up", "exported_scrape_samples", "other"]
    assert [row["metric"] for row in rows(text, keep=["up"])] == ["exported_up", "up"]


@pytest.mark.parametrize(
    ("url", "labels"),
    [
        ("http://h:9100/metrics", {"instance": "h:9100"}),
        ("http://h", {"instance": "h"}),
        (
            "http://h:9116/snmp?target=sw1&module=if_mib&auth=secret",
            {"instance": "sw1", "metrics_path": "/snmp", "module": "if_mib"},
        ),
        ("http://h:9187/probe?target=postgres%3A%2F%2Fu%3Apw%40db", {"metrics_path": "/probe"}),
        ("https://h/metrics/cadvisor", {"instance": "h", "metrics_path": "/metrics/cadvisor"}),
    ],
)
def test_labels_tell_the_targets_of_one_exporter_apart(url: str, labels: dict[str, str]) -> None:
    found = labels_of(url)
    assert found | labels == found
    assert "pw" not in str(found)


async def test_devices_behind_one_exporter_and_their_scrapes_are_told_apart() -> None:
    async def expose(request: web.Request) -> web.Response:
        return web.Response(text=f"if_errors {len(request.query['target'])}\n")

    core = SampleCore()
    async with exposing(expose) as url:
        urls = [f"{url}?target={name}" for name in ("sw1", "sw22")]
        async with scraping(core, *urls, device="{instance}"):
            await until(lambda: {3, 4} <= set(core.values("if_errors")) and len(core.values("up")) > 1)
    assert {(row["device"], row["value"]) for row in core.rows if row["metric"] == "if_errors"} == {
        ("sw1", 3),
        ("sw22", 4),
    }
    assert {row["device"] for row in core.rows if row["metric"] == "up"} == {"sw1", "sw22"}


async def test_a_sample_with_its_own_unchanged_time_is_stored_once_also_over_starts(tmp_path: Path) -> None:
    text = 'a{x="1"} 1 1700000000123\na{x="2"} 1 1700000000123\nb 2\n'

    async def expose(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    core, server = SampleCore(refuse=1), LocalServer("nats://127.0.0.1:4222", Path(), tmp_path)
    async with exposing(expose) as url:
        for times in (1, 2, 3):
            if times == 3:
                text = text.replace("123", "456", 1)
            async with scraping(core, url, server=server):
                before = len(core.values("up"))
                await until(lambda before=before: len(core.values("up")) > before + 2)  # type: ignore[misc]
            assert core.values("a") == [1] * (2 if times < 3 else 3)
    assert len(core.values("b")) > 6


async def test_globs_that_match_no_sample_are_named(exporter: str) -> None:
    core = SampleCore()
    with structlog.testing.capture_logs() as logged:
        async with scraping(core, exporter, keep=["pressure_*", "strokes"], drop=["nothing_*"]):
            await until(lambda: len(core.values("up")) > 2)
    (told,) = [entry for entry in logged if entry["event"] == "globs match no sample"]
    assert (told["keep"], told["drop"]) == (["strokes"], ["nothing_*"])


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["text/plain", OPEN]))
def test_any_text_is_an_exposition_or_refused(text: str, content_type: str) -> None:
    with suppress(ExpositionError):
        rows(text, content_type)


LABELS = st.dictionaries(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.text(max_size=9), max_size=4)


@given(LABELS, st.floats(allow_nan=False, allow_infinity=False))
def test_what_the_official_client_writes_is_read_back(labels: dict[str, str], value: float) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "g", sorted(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    for text, kind in (
        (generate_latest(registry), "text/plain"),
        (exposition.generate_latest(registry), OPEN),  # type: ignore[no-untyped-call]
    ):
        (row,) = rows(text.decode(), kind)
        assert row["value"] == value
        assert row["tags"] == {"instance": "x:1", **labels}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": []}, "urls names 0 targets"),
        ({"urls": ["ftp://x/"]}, "is not a target"),
        ({"urls": ["http://"]}, "is not a target"),
        ({"urls": ["http://me:secret@x/"]}, "take token_file"),
        ({"urls": ["http://x/", "http://x/"]}, "twice"),
        ({"interval": Seconds(0.01), "timeout": Seconds(0.01)}, "interval is 0.01 s"),
        ({"timeout": Seconds(60.0)}, "longer than interval"),
        ({"device": "{}"}, "device '{}' cannot be used"),
        ({"device": "{a"}, "device '{a' cannot be used"),
        ({"token_file": Path("/nonexistent")}, "cannot be read"),
        ({"tls_ca": Path("/nonexistent")}, "no certificates"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, Any], said: str) -> None:
    given_options = {"urls": ["http://127.0.0.1:9100/metrics"], **options}
    (problem,) = problems([PrometheusInput(PrometheusOptions(**given_options), Metrics())])
    assert said in problem
    assert "secret" not in problem
