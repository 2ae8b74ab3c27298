"""Which history of a hub's stream its messages are of."""

from __future__ import annotations

import shutil
from pathlib import Path

from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.spark.lakes import contents
from tests.unit.hub_jobs.refined import ingest_all
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream


def test_a_stream_restored_after_bronze_passed_a_gap_at_its_end_is_another_history(tmp_path: Path) -> None:
    lake, store, copy = tmp_path / "lake", tmp_path / "server" / "store", tmp_path / "copy"
    hub = PlainServer(tmp_path / "server")
    source = Server(hub.url)
    try:
        hub.start()
        with Connection(source) as conn:
            make_stream(conn, "S")
        fill(hub, "S.a", [b"before %d" % number for number in range(10)])
        hub.stop()
        shutil.copytree(store, copy)
        hub.start()
        fill(hub, "S.a", [b"lost %d" % number for number in range(5)])
        with Connection(source) as conn:
            conn.api("STREAM.PURGE.S", {"seq": 16})
        ingest_all(lake, source, "S")
        assert contents(lake, "bronze") == []

        hub.stop()
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        hub.start()
        after = [b"after %d" % number for number in range(10)]
        fill(hub, "S.a", after)
        ingest_all(lake, source, "S")
    finally:
        hub.stop()

    payloads = contents(lake, "bronze", "payload")
    assert {*after} <= {*payloads}
    assert len(payloads) == len({*payloads}) == 20
    assert len({*contents(lake, "bronze", "created")}) == 1
