"""Positions of many files in one header."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import ContractError
from agent.leaf.inputs.file.positions import MAX_FILES, encode, key_of, pack, parse_positions
from agent.leaf.inputs.file.rotation import FilePosition
from agent.leaf.intake import MAX_POSITION

NATURAL = st.integers(0, 2**64 - 1)
FINGERPRINTS = st.binary(min_size=8, max_size=8).map(bytes.hex)
POSITIONS = st.dictionaries(
    st.text(st.characters(codec="utf-8")).map(key_of),
    st.builds(FilePosition, NATURAL, NATURAL, FINGERPRINTS, NATURAL),
    max_size=9,
)
ONE = {"v": 1, "path": "/x/a.log", "inode": 7, "offset": 9, "fingerprint": "0123456789abcdef", "modified": 3}


@given(POSITIONS)
def test_positions_survive_their_header(positions: dict[bytes, FilePosition]) -> None:
    text = encode(pack(key, position) for key, position in positions.items())
    assert text.isascii()
    assert text.isprintable()
    assert parse_positions(text) == positions


def test_as_many_files_as_are_followed_fit_whatever_their_positions() -> None:
    largest = FilePosition(2**64 - 1, 2**64 - 1, "f" * 16, 2**64 - 1)
    text = encode(pack(key_of(f"/x/{number}"), largest) for number in range(MAX_FILES))
    assert len(text) <= MAX_POSITION
    assert len(parse_positions(text)) == MAX_FILES


def test_the_position_of_the_one_file_that_there_was_can_still_be_read() -> None:
    assert parse_positions(json.dumps(ONE)) == {key_of("/x/a.log"): FilePosition(7, 9, "0123456789abcdef", 3)}


@given(POSITIONS, st.data())
def test_a_position_that_was_cut_off_is_refused_or_lacks_whole_files(
    positions: dict[bytes, FilePosition], data: st.DataObject
) -> None:
    records = [pack(key, position) for key, position in positions.items()]
    whole = b"".join(records)
    length = data.draw(st.integers(0, len(whole)))
    ends = {0: 0}
    for number, record in enumerate(records, 1):
        ends[sum(map(len, records[: number - 1])) + len(record)] = number
    try:
        found = parse_positions(encode([whole[:length]]))
    except ContractError:
        assert length not in ends
    else:
        assert found == dict(list(positions.items())[: ends[length]])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({**ONE, "v": 3}),
        json.dumps({name: value for name, value in ONE.items() if name != "v"}),
        json.dumps({name: value for name, value in ONE.items() if name != "modified"}),
        json.dumps({**ONE, "inode": -1}),
        json.dumps({**ONE, "offset": True}),
        json.dumps({**ONE, "fingerprint": "f"}),
        '{"v":2}',
        '{"v":2,"files":"é"}',
        '{"v":2,"files":"AAA"}',
        json.dumps({"v": 2, "files": base64.b64encode(b"\x00" * 16 + b"\x09" + b"\x01" * 9).decode()}),
        "[" * 100_000,
    ],
)
def test_a_position_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="stored position"):
        parse_positions(text)
