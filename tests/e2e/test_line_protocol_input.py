"""InfluxDB's clients write to the `http` input: the official one for Python, and what Telegraf's outputs send
and expect by their source."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

from agent.config import Size
from agent.leaf.intake import RefusalReason, RefusedError
from tests.harness.http_harness import Served, serving

LINE = b"cpu,host=pump-7,cpu=cpu0 usage=2.5,idle=3i 1790000000000000000\n"
TEXT = {"Content-Type": "text/plain; charset=utf-8"}
WRITES = ["/write?db=telegraf", "/api/v2/write?org=o&bucket=b"]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


@pytest.mark.parametrize("path", WRITES)
async def test_each_field_is_stored_as_a_reading(served: Served, path: str) -> None:
    assert (await served.post(LINE, TEXT, path))[0] == 204
    assert (await served.post(gzip.compress(LINE), {**TEXT, "Content-Encoding": "gzip"}, path))[0] == 204
    reading = {"ts": "2026-09-21T14:13:20Z", "device": "pump-7", "tags": {"cpu": "cpu0"}}
    two = [{**reading, "metric": "cpu_usage", "value": 2.5}, {**reading, "metric": "cpu_idle", "value": 3}]
    assert served.core.rows() == two * 2
    assert [chunk.count for chunk in served.core.stored] == [2, 2]


async def test_the_tag_that_is_the_device_can_be_chosen() -> None:
    async with serving(device_tag="cpu") as served:
        await served.post(LINE + b"mem free=1", TEXT, WRITES[0])
        assert [(row["device"], row.get("tags")) for row in served.core.rows()][1:] == [
            ("cpu0", {"host": "pump-7"}),
            ("edge-1", None),
        ]


@pytest.mark.parametrize("path", WRITES)
async def test_good_lines_are_stored_and_the_others_named(served: Served, path: str) -> None:
    status, body, _ = await served.post(LINE + b"nonsense\n" + LINE + b"m f=x\n", TEXT, path)
    assert status == 400
    assert (body["code"], body["line"]) == ("invalid", 2)
    assert [one["line"] for one in body["lines"]] == [2, 4]
    assert body["error"] == body["message"]
    assert body["error"].startswith("partial write: unable to parse line 2: ")
    assert "dropped=2; the other lines are stored (4 readings)" in body["error"]
    assert len(served.core.rows()) == 4
    assert served.metric("petiole_invalid_requests_total", reason="bad_lines") == 1
    await served.post(LINE + b"m f=y\nm,a=1,a=2 f=1\nm f=1 noon\n", TEXT, path)
    left_out = ("form", "value", "tags", "time")
    assert [served.metric("petiole_left_out_parts_total", reason=one) for one in left_out] == [1, 2, 1, 1]
    assert served.metric("petiole_http_refusals_total", status="400") == 2


async def test_bad_lines_alone_store_nothing_and_say_so(served: Served) -> None:
    status, body, _ = await served.post(b"nonsense\n", TEXT, WRITES[0])
    assert status == 400
    assert "nothing of the request was stored" in body["error"]
    assert served.core.stored == []


@pytest.mark.parametrize("path", WRITES)
async def test_while_nothing_can_be_stored_a_partial_write_is_not_told_as_one(
    served: Served, path: str
) -> None:
    served.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 7)
    status, body, headers = await served.post(LINE + b"nonsense\n", TEXT, path)
    telegraf_1_drops_what_is_answered_4xx = path == WRITES[0]
    assert status == (503 if telegraf_1_drops_what_is_answered_4xx else 429)
    assert headers["Retry-After"] == "7"
    assert body["message"] == "the stream is full; nothing of the request was stored"
    assert body["code"] == ("unavailable" if status == 503 else "too many requests")


async def test_an_unknown_precision_is_refused(served: Served) -> None:
    status, body, _ = await served.post(LINE, TEXT, "/write?precision=days")
    assert (status, body["code"]) == (400, "invalid")
    assert "days" in body["message"]


async def test_a_body_that_would_become_too_large_is_refused() -> None:
    async with serving(body=Size(100_000)) as served:
        bomb = b"m,t=" + b"x" * 10_000 + b" " + b",".join([b"f=1"] * 1000)
        status, body, _ = await served.post(bomb, TEXT, WRITES[1])
        assert (status, body["code"]) == (413, "request too large")
        assert (await served.post(LINE, TEXT, WRITES[1]))[0] == 204


async def test_clients_that_ask_whether_somebody_is_there_are_told(served: Served) -> None:
    for method in ("GET", "HEAD"):
        status, _, headers = await served.post(None, path="/ping", method=method)
        assert (status, "X-Influxdb-Version" in headers) == (204, True)
    status, body, _ = await served.post(None, path="/health", method="GET")
    assert (status, body["status"]) == (200, "pass")
    status, body, _ = await served.post(None, path="/ready", method="GET")
    assert (status, body["status"]) == (200, "ready")
    assert (await served.post(None, path="/health", method="POST"))[0] == 405
    assert (await served.post(None, {"Host": "evil.example"}, "/ping", "GET"))[0] == 421


async def test_the_official_client_writes_and_reads_our_answers(served: Served) -> None:
    def write() -> tuple[bool, Any]:
        with InfluxDBClient(served.url, token="t", org="o", enable_gzip=True) as client:
            api = client.write_api(write_options=SYNCHRONOUS)
            point = {
                "measurement": "weather station",
                "tags": {"host": "h,1", "a=b": "c d"},
                "fields": {"t": 1.5, "text": 'say "x" \\ y', "n": 3, "ok": True},
                "time": 1_790_000_000,
            }
            api.write("b", record=[point], write_precision="s")
            with pytest.raises(ApiException) as caught:
                api.write("b", record=["m f=1", "nonsense"])
            return client.ping(), caught.value

    ping, error = await asyncio.to_thread(write)
    assert ping
    assert error.status == 400
    assert error.message.startswith("partial write: unable to parse line 2")
    stored = {row["metric"]: row for row in served.core.rows()}
    assert stored["weather station_text"]["value"] == 'say "x" \\ y'
    assert stored["weather station_t"] == {
        "ts": "2026-09-21T14:13:20Z",
        "device": "h,1",
        "metric": "weather station_t",
        "value": 1.5,
        "tags": {"a=b": "c d"},
    }
    assert stored["weather station_n"]["value"] == 3
    assert stored["weather station_ok"]["value"] is True
    assert "m_f" in stored


@pytest.mark.parametrize("body", [b"", b"\n \n", b"# a comment\n"])
async def test_a_write_without_a_line_is_answered_as_each_version_does(served: Served, body: bytes) -> None:
    assert [(await served.post(body, TEXT, path))[0] for path in WRITES] == [204, 400]
    assert (await served.post(body + b"nonsense", TEXT, WRITES[0]))[0] == 400
    assert served.core.stored == []


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def test_what_clients_of_version_1_ask_first_is_answered_as_if_all_were_there(served: Served) -> None:
    created = {"results": [{"statement_id": 0}]}
    for statement in (
        'CREATE DATABASE "telegraf"',
        "create database jmeter;",
        'CREATE RETENTION POLICY "two" ON "x" DURATION 2w REPLICATION 1',
    ):
        form = urlencode({"q": statement})
        assert (await served.post(form.encode(), FORM, "/query"))[:2] == (200, created)
        assert (await served.post(None, path=f"/query?{form}"))[:2] == (200, created)
        assert (await served.post(None, path=f"/query?{form}", method="GET"))[:2] == (200, created)
    both = urlencode({"q": "SHOW DATABASES; SHOW RETENTION POLICIES ON x", "db": "x"})
    _, body, headers = await served.post(None, path=f"/query?{both}", method="GET")
    databases, policies = body["results"]
    assert databases["series"] == [{"name": "databases", "columns": ["name"], "values": [["x"]]}]
    assert policies["series"][0]["values"][0][0] == "autogen"
    assert "X-Influxdb-Version" in headers
    for query in ("q=SELECT+*+FROM+cpu", "q=DROP+DATABASE+x", "q=", "", "q=CREATE+DATABASES"):
        status, body, _ = await served.post(None, path=f"/query?{query}", method="GET")
        assert (status, bool(body["error"])) == (400, True)
    assert (await served.post(b"\xff\x00", FORM, "/query"))[0] == 400
    assert (await served.post(b"q=" + b"x" * 70_000, FORM, "/query"))[0] == 413
    status, body, _ = await served.post(None, path="/ping?verbose=true", method="GET")
    assert (status, "version" in body) == (200, True)


async def test_the_password_of_version_1_may_be_in_the_url(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("s3cret\n")
    async with serving(token_file=token) as served:
        for path in ("/write?db=x", "/query?q=SHOW+DATABASES"):
            assert (await served.post(LINE, TEXT, f"{path}&u=me&p=s3cret"))[0] in (200, 204)
            assert (await served.post(LINE, TEXT, f"{path}&u=me&p=wrong"))[0] == 401
            assert (await served.post(LINE, {**TEXT, "Authorization": "Token wrong"}, f"{path}&p=s3cret"))[
                0
            ] == 401
        assert (await served.post(LINE, TEXT, "/api/v2/write?org=o&p=s3cret"))[0] == 401
