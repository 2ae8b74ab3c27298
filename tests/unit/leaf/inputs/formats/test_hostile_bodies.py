"""Bodies that mean harm, or are damaged: a reading or a refusal with its place, and no memory that grows."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from agent import contract
from agent.leaf.inputs.formats import ndjson
from agent.leaf.inputs.formats.line_cache import LineCache
from agent.leaf.inputs.formats.line_protocol import Parsing
from agent.leaf.inputs.formats.ndjson import BadLinesError, decode_ndjson
from agent.leaf.inputs.formats.reading_decoder import LARGE_LINE
from agent.leaf.inputs.http.bodies import (
    Bodies,
    Body,
    Hold,
    UnpackedTooLargeError,
    unpack,
    unpack_parts,
)
from agent.leaf.inputs.http.limits import line_limits
from agent.leaf.inputs.http.otlp import OtlpRoute
from agent.leaf.inputs.http.otlp.parse import Export
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import STORED
from agent.leaf.inputs.http.route import RouteSettings

NOW = 1_790_000_000_000_000_000
LIMIT = 4096
PLAIN = b'{"ts":1,"device":"d","metric":"m","value":1}\n' * 50
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
ESCAPE = "\x1b[31m<script>alert(1)</script>"


def by_line_protocol(body: bytes, to: LineCache | None = None) -> Parsing:
    parsing = Parsing(body, to or LineCache("edge-1", "host"), 1, NOW, 2**26)
    while parsing.step():
        pass
    return parsing


def by_otlp(body: bytes, sources: Sources | None = None) -> Export:
    found = Export(body, False, sources if sources is not None else Sources("edge-1"), NOW, 2**26)
    while found.step():
        pass
    return found


def export_of(count: int, first: int = 0, width: int = 1) -> bytes:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    points = metrics.add(name="g").gauge.data_points
    for number in range(first, first + count):
        point = points.add(as_double=number, time_unix_nano=NOW)
        point.attributes.add(key="n").value.string_value = f"{number:0{width}}"
    histogram = metrics.add(name="h").histogram.data_points.add(
        count=3, sum=1.5, bucket_counts=[1, 2], explicit_bounds=[0.5], time_unix_nano=NOW
    )
    histogram.attributes.add(key="list").value.array_value.values.add(int_value=1)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("encoding", PACK)
@given(data=st.data())
@settings(max_examples=150)
def test_a_packed_body_that_is_damaged_is_refused_or_within_its_bound(
    encoding: str, data: st.DataObject
) -> None:
    body = bytearray(PACK[encoding](PLAIN))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=20))
    try:
        unpacked = unpack(bytes(body), encoding, LIMIT)
    except (UnpackedTooLargeError, ValueError):
        return
    assert len(unpacked) <= LIMIT


@pytest.mark.parametrize("encoding", PACK)
def test_what_a_small_body_unpacks_to_is_never_held_beyond_its_bound(encoding: str) -> None:
    bomb = PACK[encoding](bytes(2**25))
    tracemalloc.start()
    try:
        with pytest.raises(UnpackedTooLargeError):
            unpack(bomb, encoding, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 12 * 2**20
    finally:
        tracemalloc.stop()


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_export_is_refused_or_can_be_stored(data: st.DataObject) -> None:
    body = bytearray(export_of(3))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = by_otlp(bytes(body))
    except ValueError:
        return
    for line in found.payload.splitlines():
        contract.parse_reading(line)


def test_an_endless_line_is_refused_with_its_place() -> None:
    with pytest.raises(BadLinesError) as refused:
        decode_ndjson(PLAIN + b'{"metric":"' + b"x" * 2**24, "edge-1", NOW)
    assert [number for number, _ in refused.value.lines] == [51]
    parsing = by_line_protocol(b"a f=1\nm," + b"x" * 2**24 + b"\nb f=1\n")
    assert (parsing.count, [number for number, _ in parsing.bad]) == (2, [2])


def test_tags_without_end_do_not_stay_in_memory() -> None:
    lines, sources = LineCache("edge-1", "host"), Sources("edge-1")
    tracemalloc.start()
    try:
        for begin in range(0, 6000, 500):
            body = "".join(f"m,t={n:01000} f=1 {NOW}\n" for n in range(begin, begin + 500)).encode()
            assert by_line_protocol(body, lines).count == 500
            assert by_otlp(export_of(500, begin, 1000), sources).count == 504
        del body
        assert tracemalloc.get_traced_memory()[0] < 12 * 2**20  # of the 25 MB that were seen
    finally:
        tracemalloc.stop()


def test_terminal_codes_in_names_are_refused_in_words_that_hold_none() -> None:
    with pytest.raises(BadLinesError) as refused:
        decode_ndjson(b'{"metric":"\\u001b[31m","value":1}\n', "edge-1", NOW)
    parsing = by_line_protocol(f"{ESCAPE},t=x f=1\nm,{ESCAPE}=x f=1\nm {ESCAPE}=1\n".encode())
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=ESCAPE)
    metric.gauge.data_points.add(as_int=1)
    found = by_otlp(request.SerializeToString())
    assert (parsing.count, len(parsing.bad), found.count, found.rejected) == (0, 3, 0, 1)
    told = [*refused.value.lines, *parsing.bad, (0, found.response(False).decode(errors="replace"))]
    assert not any("\x1b" in reason for _, reason in told)


def test_a_name_like_a_page_is_stored_as_it_is() -> None:
    body = b'{"metric":"<script>alert(1)</script>","device":"&amp;\\"","value":1}\n'
    (line,) = decode_ndjson(body, "edge-1", NOW).payload.splitlines()
    reading = contract.parse_reading(line)
    assert (reading.metric, reading.device) == ("<script>alert(1)</script>", '&amp;"')


IDLE = (b"\n", b"  \n", b" \r\n", b"#\n", b"# m v=1\n", b" # x \r\n")


class Counting(Parsing):
    """Counts what costs: a step, and a line that is looked at by itself."""

    steps = lines = 0

    def step(self) -> bool:
        self.steps += 1
        return super().step()

    def _take_line(self, begin: int, out: list[bytes]) -> None:
        self.lines += 1
        super()._take_line(begin, out)


@pytest.mark.parametrize("idle", IDLE)
def test_lines_that_say_nothing_are_passed_over_by_the_stretch(idle: bytes) -> None:
    size = 2**22
    body = idle * (size // len(idle)) + b"m v=1 7\nx\n" + idle * 5 + b"y\n"
    parsing = Counting(body, LineCache("edge-1", "host"), 1, NOW, 2**26)
    while parsing.step():
        pass
    first = size // len(idle) + 1
    assert (parsing.count, [number for number, _ in parsing.bad]) == (1, [first + 1, first + 7])
    assert parsing.steps <= size // (64 * 1024) + 4
    assert parsing.lines <= 8


@pytest.mark.parametrize(
    "line", [b'm v="x"\n', b'm v="\n', b"m v=1\n", b"x\n", b"m\\\n", b"m,t=\\\n", b'm v="\n"\n']
)
def test_short_lines_are_taken_a_few_hundred_at_a_time(line: bytes) -> None:
    parsing = Parsing(line * 30_000, LineCache("edge-1", "host"), 1, NOW, 2**26)
    more, before = True, (0, 0)
    while more:
        more = parsing.step()
        after = parsing.count, parsing.left_out.total()
        assert sum(after) - sum(before) <= 1_000
        before = after


@pytest.mark.parametrize("line", [b"m\\\n", b"m,t=\\\n", b"m,t=a,\\\n"])
def test_newlines_behind_backslashes_cost_no_more_the_more_there_are(line: bytes) -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        by_line_protocol(line * count)
        return time.process_time() - began

    few = min(seconds(1_000) for _ in range(3))
    assert min(seconds(8_000) for _ in range(3)) < 8 * 4 * few


@given(
    st.lists(st.sampled_from((*IDLE, b"m v=1 7\n", b'm v="a\n\n# b" 7\n', b"x\n", b"m v=2\r\n")), max_size=30)
)
def test_lines_that_say_nothing_change_neither_readings_nor_the_numbers_of_bad_lines(
    lines: list[bytes],
) -> None:
    whole = by_line_protocol(b"".join(lines))
    without = by_line_protocol(b"".join(line for line in lines if line not in IDLE))
    assert (without.payload, without.count) == (whole.payload, whole.count)
    number, bad = 1, []
    for line in lines:
        if line == b"x\n":
            bad.append(number)
        number += line.count(b"\n")
    assert [line for line, _ in whole.bad] == bad


@pytest.mark.parametrize("blank", [b"\n", b"  \n", b"\t\r\n", PLAIN])
def test_one_bad_line_behind_many_others_is_found_without_looking_at_each(
    blank: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    def counting(line: bytes) -> Exception | None:
        nonlocal looked
        looked += 1
        return fault(line)

    fault = ndjson._fault
    monkeypatch.setattr(ndjson, "_fault", counting)
    body = blank * (2**23 // len(blank)) + b"x\n" + blank + b"y"
    tracemalloc.start()
    try:
        with pytest.raises(BadLinesError) as refused:
            decode_ndjson(body, "edge-1", NOW)
        assert tracemalloc.get_traced_memory()[1] < (2**24 if blank == PLAIN else 2**20)
    finally:
        tracemalloc.stop()
    number = body.count(b"\n") + 1
    assert [line for line, _ in refused.value.lines] == [number - 1 - blank.count(b"\n"), number]
    assert looked <= 2 * 256 * 1024 // len(PLAIN.splitlines()[0])


@given(st.lists(st.sampled_from((b"", b" \t", b"\r", b"x", b'{"metric":"m","value":1}', b"{}")), max_size=12))
def test_each_bad_line_is_named_by_its_number(lines: list[bytes]) -> None:
    bad = [number for number, line in enumerate(lines, 1) if line in (b"x", b"{}")]
    named: list[int] = []
    try:
        decode_ndjson(b"\n".join(lines), "edge-1", NOW)
    except BadLinesError as refused:
        named = [number for number, _ in refused.lines]
    assert named == bad


@pytest.mark.parametrize("line", [b"x\n", b"1\n", b"{}\n", b'{"metric":"\\u0061","value":1}\n'])
def test_bad_lines_are_looked_for_some_at_a_time(line: bytes) -> None:
    body = PLAIN * 400 + b"x\n" + line * 20_000
    slices = ndjson.decode_slices(body, "edge-1", NOW)
    pieces: list[ndjson.Decoded] = []
    with pytest.raises(BadLinesError) as refused:
        pieces.extend(slices)
    looked_at = min(len(body), len(PLAIN) * 400 + len(line) * ndjson.MAX_COUNTED)
    assert len(pieces) >= looked_at // (64 * 1024)
    assert refused.value.lines[0][0] == PLAIN.count(b"\n") * 400 + 1
    lines = b"".join([line, PLAIN] * 20) + line * 50_000
    parts = list(ndjson.split_slices(lines, "edge-1", NOW))
    assert max(len(bad) for _, bad in parts) <= 8 * 1024
    assert sum(good.count + len(bad) for good, bad in parts) == lines.count(b"\n")
    assert all(lines[offset : offset + len(line)] == line for _, bad in parts for offset, _ in bad)


def test_a_long_line_that_is_no_reading_is_not_built_to_say_so() -> None:
    line = b'{"metric":"m","value":[' + b"{}," * (2**20) + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(BadLinesError) as refused:
            decode_ndjson(line, "edge-1", NOW)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(line)
    finally:
        tracemalloc.stop()
    assert "value" in refused.value.lines[0][1]


def test_an_array_in_a_line_that_is_too_long_is_refused_before_it_is_built() -> None:
    line = b'{"metric":"m","value":[' + b"1.5," * (LARGE_LINE // 4) + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(BadLinesError) as refused:
            decode_ndjson(PLAIN + line, "edge-1", NOW)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(line)  # its numbers alone would be as much
    finally:
        tracemalloc.stop()
    assert refused.value.lines == [(51, f"a line with an array or bytes has at most {LARGE_LINE} bytes")]


@pytest.mark.parametrize("value", [b"[1]", b'{"base64":"AA=="}'])
def test_a_line_is_as_long_as_its_bound_and_no_longer(value: bytes) -> None:
    line = b'{"metric":"m","value":' + value + b"}"
    line += b" " * (LARGE_LINE - len(line))
    for end in (b"", b"\n", b"\n" + PLAIN):
        assert decode_ndjson(PLAIN + line + end, "edge-1", NOW).count == 51 + end.count(PLAIN) * 50
    with pytest.raises(BadLinesError) as refused:
        decode_ndjson(PLAIN + line + b" \n" + PLAIN, "edge-1", NOW)
    assert [number for number, _ in refused.value.lines] == [51]
    assert decode_ndjson(b'{"metric":"m","value":1}' + b" " * LARGE_LINE, "edge-1", NOW).count == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"[" + b"1," * contract.MAX_ARRAY + b"1]", "more than 131072 numbers"),
        (b'{"base64":"' + b"A" * 1_398_104 + b'"}', "more than 1048576 bytes"),
    ],
)
def test_a_value_that_is_too_large_is_refused_in_words(value: bytes, words: str) -> None:
    with pytest.raises(BadLinesError, match=words):
        decode_ndjson(b'{"metric":"m","value":' + value + b"}", "edge-1", NOW)


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_is_unpacked_some_at_a_time(encoding: str) -> None:
    for plain in (bytes(2**24), PLAIN * 4_000, b""):
        parts = list(unpack_parts(PACK[encoding](plain), encoding, 2**24))
        assert b"".join(parts) == plain
        assert max(map(len, parts)) <= 2**23


def test_a_body_of_many_empty_frames_is_refused_before_they_are_all_looked_at() -> None:
    empty = zstandard.ZstdCompressor().compress(b"")
    assert unpack(empty * 4096, "zstd", 0) == b""
    with pytest.raises(ValueError, match="more than 4096 frames"):
        unpack(empty * 2**20, "zstd", 0)


@pytest.mark.parametrize(("came", "may"), [(0, 2**20), (1_000, 2**20), (64_000, 12_800_000), (2**20, 2**24)])
def test_what_may_be_made_of_a_body_grows_with_it(came: int, may: int) -> None:
    assert line_limits(2**24).of(came) == (may, may)


@pytest.mark.parametrize("shared", ["resource", "scope"])
def test_attributes_that_many_share_are_looked_at_once(shared: str) -> None:
    def seconds(count: int) -> float:
        request = ExportMetricsServiceRequest()
        of_resource = request.resource_metrics.add()
        for number in range(count if shared == "resource" else 0):
            of_resource.resource.attributes.add(key=str(number))
        for number in range(1 if shared == "scope" else count):
            of_scope = of_resource.scope_metrics.add()
            of_scope.scope.attributes.add(key=str(number))
            for other in range(count if shared == "scope" else 1):
                of_scope.scope.attributes.add(key=f"other {other}")
                of_scope.metrics.add(name="m").gauge.data_points.add(as_int=1)
        body = request.SerializeToString()
        began = time.process_time()
        by_otlp(body)
        return time.process_time() - began

    few = min(seconds(500) for _ in range(3))
    # A cost that grows with the square would be 256 times.
    assert min(seconds(8_000) for _ in range(2)) < 16 * 8 * few


async def test_an_export_in_json_is_read_beside_the_loop() -> None:
    body = b'{"resourceMetrics":[' + b"{}," * 300_000 + b"{}]}"
    head = RequestHead("/v1/metrics", is_json=True, encoding=None, key=None, limits=line_limits(2**20))
    settings = RouteSettings("edge-1", 2**20, "host", otlp=True, success=STORED)
    bodies = Bodies(2**28)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async with asyncio.TaskGroup() as group:
        turning = group.create_task(turn())
        await OtlpRoute(settings).decode(Body(body, 2**20), head, Hold(bodies))
        turning.cancel()
    assert turns > 20
