"""What becomes of requests of Prometheus remote write that protobuf's own runtime has written."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats.ndjson import BodyTooLargeError
from agent.leaf.inputs.http.bodies import UnpackedTooLargeError, unpack
from agent.leaf.inputs.http.remote_write.parse import SeriesCache, WriteRequest
from agent.leaf.inputs.http.remote_write.wire import ProtobufError
from tests.harness.remote_write import STALE, Request, packed, request_1, request_2

MS = 1_790_000_000_123
UP = {"__name__": "up", "instance": "pump-7:9100", "job": "node"}
BOTH = pytest.mark.parametrize("write", [request_1, request_2], ids=["1.0", "2.0"])


def read(request: Any, device: str | None = None, limit: int = 2**24) -> WriteRequest:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    found = WriteRequest(body, SeriesCache("edge-1", device), limit)
    while found.step():
        pass
    assert found.payload.count(b"\n") == found.count
    return found


def rows(found: WriteRequest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found.payload.splitlines()]


@BOTH
def test_a_sample_is_a_reading_by_its_name_and_labels(write: Any) -> None:
    found = read(
        write([(UP, [(1.0, MS), (0.0, MS + 1)]), ({"__name__": "load"}, [(-2.5, -1)])]), "{instance}"
    )
    job = {"job": "node"}
    assert rows(found) == [
        {"ts": "2026-09-21T14:13:20.123Z", "device": "pump-7:9100", "metric": "up", "value": 1, "tags": job},
        {"ts": "2026-09-21T14:13:20.124Z", "device": "pump-7:9100", "metric": "up", "value": 0, "tags": job},
        {"ts": "1969-12-31T23:59:59.999Z", "device": "edge-1", "metric": "load", "value": -2.5},
    ]
    assert found.is_2 == (write is request_2)


@BOTH
def test_the_end_of_a_series_is_no_reading_and_no_loss(write: Any) -> None:
    found = read(write([(UP, [(1.0, MS), (STALE, MS + 1)])]))
    assert (found.count, found.written, found.left_out) == (1, 2, {})


@BOTH
def test_what_no_reading_can_say_is_left_out_by_kind_and_the_rest_is_taken(write: Any) -> None:
    many = {"__name__": "m", **{f"l{number}": "x" for number in range(contract.MAX_TAGS + 1)}}
    request = write(
        [
            (UP, [(math.nan, MS), (math.inf, MS), (-math.inf, MS), (1.0, 2**62), (3.0, MS)]),
            ({"job": "no name"}, [(1.0, MS)]),
            (many, [(1.0, MS)]),
            ({"__name__": "m", "a\n": "x"}, [(1.0, MS)]),
        ]
    )
    request.timeseries[0].histograms.add(count_int=3, timestamp=MS)
    request.timeseries[0].exemplars.add(value=3, timestamp=MS)
    found = read(request)
    assert [row["value"] for row in rows(found)] == [3]
    kinds = {"nan": 1, "infinite": 2, "time": 1, "name": 2, "tags": 1, "histogram": 1, "exemplar": 1}
    assert found.left_out == kinds
    assert found.written == 1
    assert "3 × a value that is not finite" in found.reasons()


def test_a_native_histogram_is_named_with_its_remedy() -> None:
    request = request_2([(UP, [])])
    request.timeseries[0].histograms.add(count_int=3, timestamp=MS)
    assert "native histogram (set send_native_histograms: false" in read(request).reasons()


def test_metadata_is_passed_over() -> None:
    request = request_1([(UP, [(1.0, MS)])])
    request.metadata.add(metric_family_name="up", help="whether it answers")
    assert (found := read(request)).count == 1
    assert not found.left_out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff\xff", "no end"),
        (b"\x0a\x05\x0a", "beyond its message"),
        (b"\x0a\x02\x0a\x09", "beyond its series"),
        (b"\x22\x01a\x0a\x00", "fields of both"),
        (b"\x2a\x04\x0a\x02\x00\x01", "symbol 0 of 0"),
        (b"\x22\x00\x2a\x03\x0a\x01\x00", "without a value"),
        (b"\x22\x00\x2a\x04\x0a\x01\x80\x00", "beyond their series"),
        (b"\x0a\x06\x12\x02\x10\x01\x0a\x00", "labels behind samples"),
        (b"\x0b", "wire type 3"),
        (b"\x0a" + b"\xff" * 10, "no end"),
        (b"\x0a\xe8\x07" + b"\x0a\x00" * 500, "500 labels or more"),
    ],
)
def test_a_body_that_is_no_request_is_refused_and_said(body: bytes, words: str) -> None:
    with pytest.raises(ProtobufError, match=words):
        read(body)


def test_references_that_are_not_packed_are_read_too() -> None:
    body = b"\x22\x08__name__\x22\x01m\x2a\x09\x08\x00\x08\x01\x12\x03\x10\xe8\x07"
    assert Request.FromString(body).timeseries[0].labels_refs == [0, 1]
    assert rows(read(body))[0]["metric"] == "m"


def test_labels_that_make_more_of_a_body_than_its_bound_are_refused() -> None:
    request = request_2([({"__name__": "m", "a": "x" * 4000}, [(1.0, MS)])] * 1000)
    with pytest.raises(BodyTooLargeError):
        read(request, limit=2**20)


def test_more_symbols_than_a_request_may_have_are_refused() -> None:
    with pytest.raises(BodyTooLargeError):
        read(b"\x22\x00" * 200_001)


def test_the_size_of_a_block_is_looked_at_before_it_is_unpacked() -> None:
    with pytest.raises(UnpackedTooLargeError):
        unpack(b"\xff\xff\xff\xff\x0f", "snappy", 2**20)  # says 4 GiB, and holds nothing
    with pytest.raises(ValueError, match="not a block of snappy"):
        unpack(b"\xff\x00", "snappy", 2**20)


def test_series_that_are_seen_again_are_remembered_within_bounds() -> None:
    cache, most = SeriesCache("edge-1", None), 0
    for first in range(0, 5_000, 500):
        series = [({"__name__": "m", "n": f"{first + n:01000}"}, [(1.0, MS)]) for n in range(500)]
        found = WriteRequest(request_1(series).SerializeToString(), cache, 2**20)
        while found.step():
            pass
        most = max(most, cache.count)
    assert 500 < most < 2_000


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=9)
LABELS = st.dictionaries(TEXT, TEXT, max_size=5)
SERIES = st.lists(
    st.tuples(
        LABELS,
        st.lists(
            st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**12), 4 * 10**12)),
            max_size=3,
        ),
    ),
    max_size=5,
)


@BOTH
@settings(max_examples=60, deadline=None)
@given(SERIES)
def test_every_sample_becomes_one_reading_of_its_value(write: Any, series: Any) -> None:
    named = [({**labels, "__name__": "m"}, samples) for labels, samples in series]
    found = read(unpack(packed(write(named)), "snappy", 2**20))
    wanted = [(labels, value, ms) for labels, samples in named for value, ms in samples]
    assert [row["value"] for row in rows(found)] == [value for _, value, _ in wanted]
    for line, (labels, _, ms) in zip(found.payload.splitlines(), wanted, strict=True):
        reading = contract.parse_reading(line)
        assert round(datetime.fromisoformat(str(reading.ts)).timestamp() * 1000) == ms
        assert reading.tags == {name: text for name, text in labels.items() if name != "__name__"}
