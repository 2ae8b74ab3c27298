from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import (
    MAX_PLACE,
    MAX_REASON,
    MAX_RECEIVED,
    ContractError,
    Letter,
    numbered_subjects,
    parse_letter,
)

words = st.text(st.characters(codec="utf-8"), max_size=40)
received = st.binary(max_size=40) | words.map(str.encode)


@given(received, words, words, st.none() | st.integers(50, 2**40), st.integers(0, 2**40))
def test_a_letter_is_read_back_and_is_one_line(
    data: bytes, at: str, reason: str, size: int | None, omitted: int
) -> None:
    letter = Letter(data, at, reason, size, omitted)
    line = letter.encode()
    assert b"\n" not in line
    read = parse_letter(line)
    if size is not None and read.received != data:
        assert data.startswith(read.received), "of what is cut, half a character at the end may go"
        assert len(data) - len(read.received) < 4
    else:
        assert read.received == data
    assert (read.at, read.reason, read.size, read.omitted) == (at, reason, size, omitted)


@given(
    st.integers(0, 4),
    st.sampled_from([b"x", "ä".encode(), "🌡".encode(), b"\xff", b"\x00"]),
    st.integers(0, 9),
)
def test_what_is_longer_than_is_kept_is_cut_and_says_how_long_it_was(
    shift: int, filling: bytes, more: int
) -> None:
    data = b"x" * shift + filling * (MAX_RECEIVED + 1)
    line = Letter(data, "x" * 5000, "y" * 5000, len(data) + more).encode()
    read = parse_letter(line)
    assert len(line) < 7 * MAX_RECEIVED
    assert MAX_RECEIVED - 4 < len(read.received) <= MAX_RECEIVED
    assert data.startswith(read.received)
    assert read.size == len(data) + more
    assert (len(read.at), len(read.reason)) == (MAX_PLACE, MAX_REASON)
    assert (read.at[-1], read.reason[-1]) == ("…", "…")


def test_text_stands_there_as_text_and_other_bytes_in_base64() -> None:
    assert json.loads(Letter("kälte\n".encode(), "a:1", "no").encode()) == {
        "at": "a:1",
        "reason": "no",
        "text": "kälte\n",
    }
    assert json.loads(Letter(b"\xff\x00", "a:1", "no").encode())["base64"] == "/wA="


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "an object"),
        (b'{"at":"a","reason":"r"}', "text is None"),
        (b'{"at":1,"reason":"r","text":""}', "at is 1"),
        (b'{"at":"a","reason":"r","base64":"!"}', "base64"),
        (b'{"at":"a","reason":"r","text":"","size":-1}', "size"),
        (b'{"at":"a","reason":"r","text":"","omitted":true}', "omitted"),
    ],
)
def test_a_letter_that_is_none_is_refused_in_words(line: bytes, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        parse_letter(line)


def test_batches_and_dead_letters_are_numbered_together() -> None:
    assert numbered_subjects("edge-1", "normal") == [
        "tel.edge-1.normal._batch.>",
        "tel.edge-1.normal._dead.>",
    ]
