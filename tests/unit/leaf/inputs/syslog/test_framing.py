"""A stream of syslog cut into messages."""

from __future__ import annotations

import pytest

from agent.contract import MAX_RECEIVED
from agent.leaf.inputs.syslog.framing import Cut, MessageCutter, framed, messages_of

COUNTED = b"5 <1>aa10 <2>b\nbbb\n5\n6 <3>ccc"
ENDED = b"<1>aa\r\n\n<2>b\n<3>ccc\n"
BY_NUL = b"<1>aa\nbb\0<2>b\0"


def cut_in_pieces(data: bytes, size: int, longest: int = 64) -> Cut:
    """What a stream is cut into that comes some bytes at a time."""
    cutter, all_ = MessageCutter(longest), Cut()
    for at in range(0, len(data), size):
        cut = cutter.feed(data[at : at + size])
        all_.messages += cut.messages
        all_.too_long += cut.too_long
        if cut.fault is not None:
            all_.fault = cut.fault
            break
    return all_


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (COUNTED, [b"<1>aa", b"<2>b\nbbb\n5", b"<3>ccc"]),
        (b"\r\n" + COUNTED, [b"<1>aa", b"<2>b\nbbb\n5", b"<3>ccc"]),
        (b"7 <1>aa\r\n4 <2>b", [b"<1>aa", b"<2>b"]),
        (ENDED, [b"<1>aa", b"<2>b", b"<3>ccc"]),
        (b"no priority\n<1>a\n", [b"no priority", b"<1>a"]),
    ],
)
def test_the_first_byte_decides_how_messages_are_framed(
    data: bytes, messages: list[bytes], size: int
) -> None:
    assert cut_in_pieces(data, size) == Cut(messages)


def test_messages_that_nul_ends_may_hold_newlines() -> None:
    cutter = MessageCutter(64)
    assert cutter.feed(BY_NUL).messages == [b"<1>aa\nbb", b"<2>b"]
    assert cutter.feed(b"<3>c\nd").messages == []
    assert cutter.feed(b"\0").messages == [b"<3>c\nd"]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_of_a_message_that_is_too_long_the_beginning_is_kept_and_the_next_is_read(size: int) -> None:
    assert cut_in_pieces(b"20 " + b"x" * 20 + b"4 <1>a", size, 10) == Cut([b"<1>a"], [(b"x" * 20, 20)])
    cut = cut_in_pieces(b"<1>" + b"x" * 20 + b"\n<1>a\n", size, 10)
    ((begin, length),) = cut.too_long
    assert (cut.messages, begin[:9], length in (None, 23)) == ([b"<1>a"], b"<1>xxxxxx", True)


def test_a_length_of_megabytes_needs_no_memory() -> None:
    cutter = MessageCutter(100)
    assert cutter.feed(b"99999999 ") == Cut()
    for _ in range(99):
        assert cutter.feed(b"x" * 10**6) == Cut()
    assert cutter.feed(b"x" * 999_999 + b"4 <1>a") == Cut([b"<1>a"], [(b"x" * MAX_RECEIVED, 99_999_999)])


@pytest.mark.parametrize(
    ("data", "reason", "rest"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http", b""),
        (b"POST http://x/ HTTP/1.1\r\n", "http", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00", "tls", b""),
        (b"5 <1>aa<2>b", "framing", b"<2>b"),
        (b"5 <1>aa1234567890 x", "framing", b"1234567890 x"),
        (b"2026-11-23 up\n", "framing", b"2026-11-23 up\n"),
    ],
)
def test_what_is_no_syslog_is_named(data: bytes, reason: str, rest: bytes) -> None:
    fault = MessageCutter(64).feed(data).fault
    assert fault is not None
    assert (fault.reason, fault.rest) == (reason, rest)


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (b"5 <1>aa6 <2>", b"6 <2>"),
        (b"<1>aa\n<2>b", b"<2>b"),
        (b"<1>aa\n", b""),
        (b"<1>" + b"x" * 20, b"<1>" + b"x" * 20),
        (b"99 <1>" + b"x" * 20, b"<1>" + b"x" * 20),
    ],
)
def test_the_message_in_which_a_stream_ends_is_there(data: bytes, rest: bytes) -> None:
    cutter = MessageCutter(10)
    cutter.feed(data)
    assert cutter.end() == rest
    assert cutter.end() == b""


def test_a_block_gives_back_its_messages() -> None:
    messages = [b"<1>a\n7 b", b"", b"<2>" + b"x" * 1000]
    block = framed(messages)
    assert [message for _, message in messages_of(block)] == messages
    assert [block[offset : offset + 1].isdigit() for offset, _ in messages_of(block)] == [True] * 3
