"""Rows of bronze from messages as they lie in the stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub_jobs.ingest import identity
from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.ingest.identity import identities, identities_one_by_one
from tests.harness.stream_records import StreamRecord, columns_of
from tests.unit.hub_jobs.rows import RUN, batch_headers, header_block

ORIGIN = StreamOrigin("TELEMETRY_0", "2026-11-21T00:00:00Z", {"TEL_edge-1_normal": "edge-1"})


@pytest.mark.parametrize(("said", "count"), [("2", 2), ("-2", None), ("999999999999999999", None)])
def test_a_count_that_no_batch_can_have_is_none(said: str, count: int | None) -> None:
    subject = "tel.edge-1.normal._batch.http"
    source = f"TEL_edge-1_normal 7 > > {subject} abc"
    headers = {**batch_headers(1, 2), "Petiole-Count": said, "Nats-Stream-Source": source}
    messages = columns_of([StreamRecord(subject.encode(), header_block(headers), b"x", 1, 0)])

    rows = bronze_rows(messages, ORIGIN).to_pylist()

    assert [(row["domain"], row["source_seq"], row["n"], row["count"]) for row in rows] == [
        ("edge-1", 7, 1, count)
    ]


_SOURCES = (
    b"TEL_edge-1_normal 7 > > tel.edge-1.normal.pump.bar abc|TEL_edge-1_normal:C=x 8 > > tel.x abc"
    b"|TEL_other:JE7QNXai 9 > > tel.x abc|TEL_edge-1_normal -7 > > s abc|TEL_edge-1_normal 0x7 > > s abc"
    b"|TEL_edge-1_normal 1234567890123456789 > > s abc|TEL_edge-1_normal \xc2\xb2 > > s abc"
    b"|TEL_edge-1_normal 7 > > s|TEL_edge-1_normal 7 > > s abc more|TEL_edge-1_normal  > > s abc"
    b"|TEL_edge-1_normal 7 > > s abc\t|TEL_edge-1_normal 7 > > s abc\r|\xff 7 > > s abc|TEL 7 > > \xff abc|"
).split(b"|")
_source = st.sampled_from([_SOURCES[0], _SOURCES[0], *_SOURCES])
_before = st.sampled_from(
    [
        *(b"", b"", b"Nmqtt-Pub:1\r\n", b"Nats-Msg-Id: %s-normal-3\r\n" % RUN.encode()),
        *(b"Nats-Msg-Id: x\r\n", b"Nats-Stream-Source: forged 1 > > s abc\r\n", b"Petiole-Count: 2\r\n"),
    ]
)
_after = st.sampled_from(
    [b"\r\n\r\n"] * 4 + [b"\r\nNats-Msg-Id: late\r\n\r\n", b"\r\nx: y\r\n\r\n", b"\r\n", b""]
)
_block = st.one_of(
    st.builds(lambda *parts: b"NATS/1.0\r\n%bNats-Stream-Source: %b%b" % parts, _before, _source, _after),
    st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Stream-Source:\r\n\r\n"]),
)
_subject = st.sampled_from(
    [
        *["tel.edge-1.normal.pump.bar"] * 3,
        *("tel.edge-1.normal._batch.http", "tel.edge-1.normal._ledger", "tel.edge-1.bulk.pump.bar"),
        *("tel.edge-2.normal.pump.bar", "tel.edge-1.normal.pump", "other"),
    ]
)


@given(st.lists(st.tuples(_block, _subject), min_size=1, max_size=20))
@example([(b"NATS/1.0\r\nNats-Stream-Source:more TEL_edge-1_normal 7 > > s abc\r\n\r\n", "other")])
def test_the_column_says_of_messages_what_is_said_of_each_by_itself(given: list[tuple[bytes, str]]) -> None:
    blocks, subjects = [block for block, _ in given], [subject for _, subject in given]
    found = identities(pa.array(blocks, pa.binary()), pa.array(subjects), ORIGIN.domains)

    alone = identities_one_by_one(blocks, subjects, ORIGIN.domains)
    assert {name: column.cast(alone[name].type) for name, column in found.items()} == alone


def test_messages_of_devices_are_looked_at_by_the_column_also_between_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = [
        b"NATS/1.0\r\n%bNats-Stream-Source: %b\r\n\r\n" % (before, _SOURCES[0])
        for before in (b"", b"a: b\r\n")
    ]
    batch = b"NATS/1.0\r\nNats-Msg-Id: x\r\nNats-Stream-Source: %b\r\n\r\n" % _SOURCES[0]
    blocks = [*plain, batch] * 50
    alone: list[bytes] = []

    def noted(blocks: list[bytes], *rest: Any) -> dict[str, pa.Array]:
        alone.extend(blocks)
        return identities_one_by_one(blocks, *rest)

    monkeypatch.setattr(identity, "identities_one_by_one", noted)
    subjects = pa.array(["tel.edge-1.normal.a.b"] * 150)
    found = identities(pa.array(blocks, pa.binary()), subjects, ORIGIN.domains)

    assert alone == [batch] * 50
    assert found["message_id"].to_pylist() == [None, None, "x"] * 50


def test_a_subject_that_is_no_text_is_kept_by_its_bytes() -> None:
    messages = columns_of(
        [StreamRecord(b"tel.\xff", b"", b"", 1, -1), StreamRecord(b"tel.x", b"", b"", 2, 1)]
    )
    assert bronze_rows(messages, ORIGIN)["subject"].to_pylist() == ["tel.\\xff", "tel.x"]


def test_messages_of_a_stream_that_was_created_anew_have_the_identity_of_the_first() -> None:
    made = {("TEL_edge-1_normal", "abc"): "first"}
    sources = [
        b"TEL_edge-1_normal 7 > > s abc",
        b"TEL_edge-1_normal 7 > > s xyz",
        b"TEL_edge-2_normal 7 > > s abc",
    ]
    batch = b"NATS/1.0\r\nNats-Msg-Id: x\r\nNats-Stream-Source: %b\r\n\r\n"
    device = b"NATS/1.0\r\nNats-Stream-Source: %b\r\n\r\n"
    messages = columns_of(
        [StreamRecord(b"tel.x", form % one, b"", 1, 1) for form in (batch, device) for one in sources]
    )
    found = bronze_rows(messages, replace(ORIGIN, made=made))
    assert found["source_identity"].to_pylist() == ["first", "xyz", "abc"] * 2
    assert found.schema == bronze_rows(messages, ORIGIN).schema
