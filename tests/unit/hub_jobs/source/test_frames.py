"""Records that are cut out of a block are those that the reader of one frame after the other finds."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from hub_jobs.source.frames import cut, take
from hub_jobs.source.protocol import Frames, ProtocolError, deliveries, scan

SID = b"12"
BLOCK = b"NATS/1.0\r\nNats-Stream-Source: TEL 7 > > tel.a.b id\r\n\r\n"
STATUS = b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\n\r\n"


def frame(payload: bytes, block: bytes = BLOCK, reply: bytes = b" $JS.ACK.S.C.1.7.7.17.9") -> bytes:
    sizes = b"%d %d" % (len(block), len(block) + len(payload)) if block else b"%d" % len(payload)
    return b"%bMSG tel.a.b 12%b %b\r\n%b%b\r\n" % (b"H" * bool(block), reply, sizes, block, payload)


PLAIN = b"".join(frame(b"%d.5" % number) for number in range(650))
STATUS_FRAME = frame(b"", STATUS, b"")
ODD = [
    frame(STATUS, b"", b""),
    STATUS_FRAME,
    frame(b""),
    frame(b"no headers", b""),
    frame(b"a b\r\nc\x00 {}"),
    frame(b"\r\n" + frame(b"forged")),
    frame(b"\nHMSG x 12 r 1 2\r\nMSG a 12 r 0\r\n\r\n"),
    frame(b"x" * 3000),
    frame(b"other").replace(b" 12 ", b" 1 "),
    frame(b"other").replace(b" 12 ", b" 13 "),
    frame(b"5").replace(b" 12 ", b"  12 "),
    frame(b"5").replace(b"tel.a.b", b"tel.a\tb", 1),
    frame(b"5").replace(b"HMSG ", b"hmsg "),
    frame(b"5").replace(b"HMSG ", b"HMSG"),
    frame(b"5").replace(b"17.9 ", b"17.9 +"),
    frame(b"5").replace(b"17.9 ", b"17.9 9"),
    frame(b"5").replace(b"17.9 ", b"17.9 99999999999"),
    frame(b"5", b"").replace(b"17.9 1", b"17.9 -1"),
    frame(b"5").replace(b"\r\nNATS", b"\nNATS"),
    b"PING\r\n",
    b"+OK\r\n",
    b"-ERR 'Stale Connection'\r\n",
    b"\r\n",
    b"HMSG \r\n",
    b"MSG a 12 r 4",
]
odd = st.lists(st.sampled_from(ODD), max_size=3).map(b"".join)
pieces = st.one_of(odd, st.binary(max_size=40), st.just(PLAIN))


def read(data: bytes, reader: object) -> object:
    """All that a reader finds, or that it refuses the bytes."""
    frames = Frames()
    try:
        ends = reader(data, SID, frames)  # type: ignore[operator]
    except ProtocolError:
        return None
    parts = zip(*frames.records(), strict=True)
    columns = [pa.chunked_array(column, pa.binary()).to_pylist() for column in parts]
    return ends, columns, frames.answers, frames.pings, frames.errors


@given(st.lists(pieces, max_size=4), st.integers(0, 60))
@example([PLAIN, ODD[1], PLAIN, ODD[6], PLAIN], 0)
@example([PLAIN, ODD[1]] * 5, 0)
def test_what_is_cut_is_what_is_read_frame_by_frame(parts: list[bytes], lacking: int) -> None:
    data = PLAIN + b"".join(parts)
    data = data[: len(data) - lacking]
    assert read(data, take) == read(data, scan)


def test_records_of_devices_are_cut_also_behind_the_end_of_a_pull() -> None:
    records, size = cut(PLAIN + STATUS_FRAME + 2 * PLAIN, SID)
    assert records is not None
    assert (len(records.payloads), size) == (650, len(PLAIN))
    frames = Frames()
    data = PLAIN + STATUS_FRAME + 2 * PLAIN
    assert take(data, SID, frames) == (len(data), 0)
    assert [len(records.payloads) // 600 for records in frames.cut] == [1, 0, 2]


def test_a_block_of_large_messages_is_not_looked_at() -> None:
    assert cut(frame(b"x" * 2_000) + PLAIN, SID) == (None, 0)


_tokens = st.sampled_from([b"5", b"17", b"9223372036854775807", b"x", b"", b"-3", b"0x1", b"1_0", b"\xff"])


@given(st.lists(st.tuples(_tokens, _tokens, st.booleans()), min_size=1, max_size=5))
@example([(b"5", b"17", False), (b"7", b"17", False)])
def test_numbers_of_delivery_subjects_are_those_that_python_reads(
    given: list[tuple[bytes, bytes, bool]],
) -> None:
    replies = [
        b"$JS.ACK.S.C.1.%b.3.%b.%b" % (seq, stamp, b"9.z" if is_longer else b"9")
        for seq, stamp, is_longer in given
    ]
    try:
        wanted = [[int(token) for token in column] for column in list(zip(*given, strict=True))[:2]]
    except ValueError:
        return
    if given[0][2]:
        return
    found = deliveries(pa.array(replies))
    assert found.timestamps.tolist() == wanted[1]
    is_whole = wanted[0][-1] - wanted[0][0] + 1 == len(given)
    assert is_whole or found.seqs.tolist() == wanted[0]
