"""Arrays of numbers and bytes on the whole way: a real leaf, link, hub and jobs."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import urllib.error
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest

from agent.contract import MAX_ARRAY, MAX_BYTES, Exit, inbox_prefix
from agent.testing.stored_stream import StoredStream, connected
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.parquet_reading import parquet_columns
from hub_jobs.tables.scan import read
from hub_jobs.tables.schemas import READINGS
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.wait import wait_for
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import batch_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LENGTH = 100_000
COUNT = 2
COLUMNS = ("metric", "value_array", "value_bytes", "value", "text")


def waveform(number: int) -> list[float]:
    chance = random.Random(number)
    return [chance.gauss(0, 1) for _ in range(LENGTH)]


def blob(number: int) -> bytes:
    return random.Random(-number).randbytes(MAX_BYTES)


def post(leaf: Agent, key: str, value: Any) -> tuple[int, str]:
    """The answer to a reading of a metric that is called like its key; (0, "") without one."""
    body = json.dumps({"device": "motor", "metric": key, "value": value}).encode() + b"\n"
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
    request = urllib.request.Request(f"{leaf.member.http_url}/v1/readings", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except OSError:
        return 0, ""


def post_until_stored(leaf: Agent, key: str, value: Any, stored: list[str]) -> None:
    wait_for(lambda: post(leaf, key, value)[0] == 204, f"{key} is stored")
    stored.append(key)


async def publish(leaf: Agent, subject: str, payload: bytes) -> None:
    seed = leaf.member.state / "keys" / "device.nk"
    nc = await nats.connect(
        leaf.member.nats_url, nkeys_seed=str(seed), inbox_prefix=inbox_prefix("device").encode()
    )
    await nc.jetstream().publish(subject, payload)
    await nc.close()


async def last_stored(leaf: Agent) -> int:
    """The last sequence of the leaf's stream."""
    async with connected(leaf.member) as client:
        stored = StoredStream(leaf.member.domain, client)
        return (await stored.js.stream_info(stored.stream)).last


def test_arrays_and_bytes_sent_while_the_agent_is_killed_are_in_the_table_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    due: dict[str, list[float] | bytes] = {f"wave-{n}": waveform(n) for n in range(COUNT)}
    due |= {f"blob-{n}": blob(n) for n in range(COUNT)}
    stored: list[str] = []
    with hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        hub.start()
        leaf.start()
        # First: only a batch behind them shows the leaf that the hub has them.
        asyncio.run(publish(leaf, "tel.edge-1.normal.motor.direct", b"[1, 2.5]"))
        direct = {"ts": 1, "value": {"base64": "AAEC"}}
        asyncio.run(publish(leaf, "tel.edge-1.normal.motor.object", json.dumps(direct).encode()))
        with ThreadPoolExecutor(COUNT) as senders:
            for key, value in due.items():
                form = {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
                senders.submit(post_until_stored, leaf, key, form, stored)
            for already in (1, COUNT):
                wait_for(lambda least=already: len(stored) >= least, "some are stored")  # type: ignore[misc]
                assert leaf.end(signal.SIGKILL) == -signal.SIGKILL
                leaf.start()
        assert sorted(stored) == sorted(due)
        refused: dict[str, object] = {
            "array": [0.5] * (MAX_ARRAY + 1),
            "bytes": {"base64": b64encode(bytes(MAX_BYTES + 1)).decode()},
        }
        for key, too_large in refused.items():
            status, text = post(leaf, key, too_large)
            assert status == 400
            assert f"value has more than {MAX_ARRAY if key == 'array' else MAX_BYTES}" in text
        last = asyncio.run(last_stored(leaf))
        # Not the backlog: what the agent stores about itself begins another one.
        wait_for(lambda: leaf.metric("petiole_confirmed_sequence") >= last, "the hub has it all")
        key = str(hub.member.state / "keys" / "jobs.nk")
        options = ["--server", hub.member.nats_url, "--seed-file", key, "--lake", str(lake)]
        assert ingest.main(options) == Exit.WELL
    assert refine.main(["--lake", str(lake)]) == Exit.WELL
    # Without what the agent says of itself.
    found = [row[1:] for row in contents(lake, "readings", "device", *COLUMNS) if row[0] == "motor"]
    assert all(row[3:] == (None, None) for row in found)
    rows = {row[0]: row[1] if row[2] is None else row[2] for row in found}
    assert len(found) == len(rows) == len(due) + 2
    assert rows == {**due, "direct": [1.0, 2.5], "object": b"\0\1\2"}
    assert contents(lake, "quarantine", "reason") == []
    report = tmp_path / "audit.json"
    assert audit.main(["--lake", str(lake), "--deep", "--json", str(report)]) == Exit.WELL
    accounts = json.loads(report.read_text())["rows"]
    assert sum(row["in_readings"] for row in accounts) >= len(due) + 2
    wrong = ("missing", "doubled", "quarantined", "unexplained", "pending")
    assert all(not row[name] for row in accounts for name in wrong)


def line(metric: str, value: object) -> bytes:
    return json.dumps({"ts": 1, "device": "d", "metric": metric, "value": value}).encode()


def test_arrays_and_bytes_survive_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[object] = [1, [1, 2.5], {"base64": "AAEC"}, 2]
    for n, value in enumerate(values, 1):
        add_bronze(tmp_path, [batch_row(line("new", value), n=n, count=1)])
        assert refine.main(["--lake", str(tmp_path)]) == Exit.WELL
    due = [
        ("new", None, b"\0\1\2", None, None),
        ("new", None, None, 1.0, None),
        ("new", None, None, 2.0, None),
        ("new", [1.0, 2.5], None, None, None),
    ]
    due.sort(key=str)
    assert contents(tmp_path, "readings", *COLUMNS) == due
    monkeypatch.setattr("hub_jobs.tables.compaction.FEW", 2)
    assert maintain.main(["--lake", str(tmp_path)]) == Exit.WELL
    compacted = open_table(tmp_path, "readings")
    assert compacted is not None
    assert len(compacted.delta.file_uris()) == 1
    assert contents(tmp_path, "readings", *COLUMNS) == due


def test_a_changed_array_is_found_by_the_audit_and_made_good_by_replay(tmp_path: Path) -> None:
    add_bronze(tmp_path, [batch_row(line("m", [1, 2.5]) + b"\n" + line("b", {"base64": "AAEC"}), count=2)])
    assert refine.main(["--lake", str(tmp_path)]) == Exit.WELL
    assert audit.main(["--lake", str(tmp_path), "--deep"]) == Exit.WELL
    table = open_table(tmp_path, "readings")
    assert table is not None
    (path,) = (Path(uri) for uri in table.delta.file_uris())
    there = parquet_columns(path, READINGS.names)
    for name, other in (("value_array", [1.0, 2.75]), ("value_bytes", b"\0\1\3")):
        column = [other if value is not None else None for value in there[name].to_pylist()]
        with PartWriter(tmp_path, "readings") as writer:
            writer.write(there.set_column(READINGS.names.index(name), READINGS.field(name), [column]))
        table = open_table(tmp_path, "readings")
        assert table is not None
        table.rewrite(writer.files, [Path(uri).name for uri in table.delta.file_uris()], changed=True)
        report = tmp_path / "audit.json"
        assert audit.main(["--lake", str(tmp_path), "--deep", "--json", str(report)]) == Exit.LOSS
        assert f"{name} is " in report.read_text()
        assert (
            replay.main(["--lake", str(tmp_path), "--stream", "TELEMETRY_0", "--from-seq", "1"]) == Exit.WELL
        )
        assert audit.main(["--lake", str(tmp_path), "--deep"]) == Exit.WELL


def test_the_queries_of_the_document_find_what_a_waveform_says(tmp_path: Path, spark: SparkSession) -> None:
    wave = {"ts": "2026-11-20T06:00:00Z", "device": "motor", "metric": "vibration", "value": [3, 0, -4, 0]}
    add_bronze(tmp_path, [batch_row(json.dumps(wave).encode(), count=1)])
    assert refine.main(["--lake", str(tmp_path)]) == Exit.WELL
    read(spark, tmp_path / "readings").createOrReplaceTempView("readings")
    document = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text()
    queries = dict(re.findall(r"^```(sql|python) waveforms\n(.*?)^```", document, flags=re.M | re.S))
    (row,) = spark.sql(queries["sql"]).collect()
    assert (row.device, row.samples, row.peak, row.rms) == ("motor", 4, 3.0, 2.5)
    names: dict[str, Any] = {"spark": spark}
    exec(queries["python"], names)
    assert names["waves"]["loudest"].to_list() == [1]
