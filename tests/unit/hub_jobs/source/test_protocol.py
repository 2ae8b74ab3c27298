from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.source.protocol import (
    Frames,
    ProtocolError,
    ServerReply,
    deliveries,
    header,
    parse_headers,
    scan,
    status,
)

SID = b"7"
BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"


def frame(payload: bytes, block: bytes, sid: bytes = SID, reply: bytes = b"r") -> bytes:
    if block:
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
        return b"HMSG s.t %s %s %s\r\n%s%s\r\n" % (sid, reply, sizes, block, payload)
    return b"MSG s.t %s %s %d\r\n%s\r\n" % (sid, reply, len(payload), payload)


@given(
    st.lists(
        st.tuples(st.binary(max_size=40) | st.just(b"\r\nMSG x 7 r 1\r\n"), st.sampled_from([b"", BLOCK]))
    ),
    st.integers(1, 50),
)
def test_records_are_the_same_however_the_bytes_arrive(
    records: list[tuple[bytes, bytes]], piece: int
) -> None:
    stream = b"".join(frame(payload, block) for payload, block in records)
    frames, waiting, needed = Frames(), b"", 0
    for start in range(0, len(stream), piece):
        waiting += stream[start : start + piece]
        if len(waiting) >= needed:
            taken, needed = scan(waiting, SID, frames)
            waiting = waiting[taken:]
    assert waiting == b""
    assert list(zip(frames.payloads, frames.headers, strict=True)) == records
    assert frames.subjects == [b"s.t"] * len(records)


def test_what_is_no_record_is_an_answer_or_a_control_line() -> None:
    frames = Frames()
    status_frame = b"HMSG inbox 7 %d %d\r\n%s\r\n" % (len(BLOCK), len(BLOCK), BLOCK)
    other = frame(b"x", b"", sid=b"1")
    data = b"PING\r\nPONG\r\n+OK\r\nINFO {}\r\n-ERR 'Stale Connection'\r\n" + status_frame + other
    assert scan(data, SID, frames) == (len(data), 0)
    assert frames.answers == [ServerReply(b"inbox", BLOCK, b""), ServerReply(b"s.t", b"", b"x")]
    assert (frames.pings, frames.pongs, frames.errors) == (1, 1, ["Stale Connection"])
    assert frames.replies == []


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"MSG s 7 r x\r\n",
        b"MSG s 7 r -9\r\n",
        b"HMSG s\r\n",
        b"MSG s 7 r 99999999999\r\n",
    ],
)
def test_bytes_that_are_no_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        scan(data, SID, Frames())


def test_a_line_that_never_ends_is_refused() -> None:
    with pytest.raises(ProtocolError, match="control line"):
        scan(b"x" * (2 << 20), SID, Frames())


@pytest.mark.parametrize("prefix", [b"$JS.ACK.S.C", b"$JS.ACK.hub.aBc123.S.C"])
@pytest.mark.parametrize("seqs", [[5], [5, 6, 7], [5, 9, 12]])
def test_both_forms_of_delivery_subjects_are_read(prefix: bytes, seqs: list[int]) -> None:
    replies = [b"%s.1.%d.%d.%d.%d" % (prefix, seq, at + 3, 100 + at, 50 - at) for at, seq in enumerate(seqs)]
    delivery = deliveries(pa.array(replies))
    assert delivery.seqs.tolist() == seqs
    assert delivery.timestamps.tolist() == [100 + at for at in range(len(seqs))]
    assert (delivery.first_consumer_seq, delivery.last_consumer_seq) == (3, 2 + len(seqs))
    assert delivery.pending == 51 - len(seqs)


def test_the_long_form_may_end_in_one_more_token() -> None:
    delivery = deliveries(pa.array([b"$JS.ACK.hub.aBc123.S.C.1.5.6.77.8.rAnd0m"]))
    assert (delivery.seqs.tolist(), delivery.timestamps.tolist(), delivery.pending) == ([5], [77], 8)


@pytest.mark.parametrize("reply", [b"", b"inbox.1", b"$JS.ACK.S.C.1.x.2.3.4", b"$JS.ACK.a.S.C.1.1.2.3.4"])
def test_another_reply_subject_is_refused(reply: bytes) -> None:
    with pytest.raises(ProtocolError):
        deliveries(pa.array([reply]))


def test_of_a_repeated_header_the_last_counts_and_names_are_exact() -> None:
    block = (
        b"NATS/1.0\r\nNats-Stream-Source: forged\r\nX-Nats-Msg-Id: no\r\nNats-Stream-Source:  real \r\n\r\n"
    )
    assert header(block, b"Nats-Stream-Source") == b"real"
    assert header(block, b"Nats-Msg-Id") is None
    assert header(b"", b"A") is None
    assert parse_headers(block) == [
        ("Nats-Stream-Source", b"forged"),
        ("X-Nats-Msg-Id", b"no"),
        ("Nats-Stream-Source", b"real"),
    ]


def test_a_status_has_a_code_and_perhaps_a_text() -> None:
    assert status(b"NATS/1.0 409 Consumer Deleted\r\n\r\n") == (409, "Consumer Deleted")
    assert status(b"NATS/1.0 503\r\n\r\n") == (503, "")
    assert status(BLOCK) == (0, "")
    assert status(b"") == (0, "")
