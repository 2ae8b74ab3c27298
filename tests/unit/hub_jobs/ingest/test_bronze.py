"""Rows of bronze from messages as they lie in the stream."""

from __future__ import annotations

import pytest

from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.source.streams import Columns
from tests.unit.hub_jobs.rows import batch_headers, header_block

ORIGIN = StreamOrigin("TELEMETRY_0", "2026-11-21T00:00:00Z", {"TEL_edge-1_normal": "edge-1"})


@pytest.mark.parametrize(("said", "count"), [("2", 2), ("-2", None), ("999999999999999999", None)])
def test_a_count_that_no_batch_can_have_is_none(said: str, count: int | None) -> None:
    subject = "tel.edge-1.normal._batch.http"
    source = f"TEL_edge-1_normal 7 > > {subject} abc"
    headers = {**batch_headers(1, 2), "Petiole-Count": said, "Nats-Stream-Source": source}
    messages = Columns([subject.encode()], [header_block(headers)], [b"x"], [1], [0])

    rows = bronze_rows(messages, ORIGIN).to_pylist()

    assert [(row["domain"], row["source_seq"], row["n"], row["count"]) for row in rows] == [
        ("edge-1", 7, 1, count)
    ]
