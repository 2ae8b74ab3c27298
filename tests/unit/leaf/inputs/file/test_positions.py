"""Positions of many files in one header, and which file goes on from one after a rotation."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import ContractError
from agent.leaf.inputs.file.positions import (
    FINGERPRINT_BYTES,
    MAX_FILES,
    FilePosition,
    Fingerprint,
    ListedFile,
    candidates,
    encode,
    is_rotated,
    key_of,
    live_names,
    pack,
    parse_positions,
    successor,
)
from agent.leaf.intake import MAX_POSITION


@given(st.lists(st.binary(max_size=2 * FINGERPRINT_BYTES), max_size=8))
def test_a_mark_that_grew_is_the_mark_of_the_whole(pieces: list[bytes]) -> None:
    mark = Fingerprint()
    for piece in pieces:
        mark = mark.after(piece + b"more", len(piece))
    whole = b"".join(pieces)
    assert mark == Fingerprint(whole[:FINGERPRINT_BYTES], whole[-FINGERPRINT_BYTES:])


@pytest.mark.parametrize(
    ("name", "rotated"),
    [
        ("a.log.1", True),
        ("a.log.12", True),
        ("a.log-20251121", True),
        ("a.log.2025-11-21_06-00", True),
        ("a.log-2025-11-21T06:00:00", True),
        ("a.1.log", True),
        ("a-20251121.log", True),
        ("a.log", False),
        ("a.log.1.gz", False),
        ("a.log.bak", False),
        ("a.log~", False),
        ("b.log.1", False),
        ("aXlog.1", False),
        ("a.log.", False),
    ],
)
def test_only_what_a_rotation_names_is_taken_for_rotated(name: str, rotated: bool) -> None:
    assert is_rotated(name, "a.log") is rotated


def test_a_name_without_an_extension_rotates_too() -> None:
    assert is_rotated("readings.1", "readings")
    assert not is_rotated(".1", ".hidden")


@given(st.text("a.-1T", min_size=1, max_size=9))
def test_the_names_that_a_rotated_file_may_have_had_are_those_whose_rotation_it_is(name: str) -> None:
    cuts = [name[:i] + name[j:] for i in range(len(name)) for j in range(i, len(name) + 1)]
    assert live_names(name) == {one for one in cuts if is_rotated(name, one) and one}


def at(inode: int, offset: int, modified: int = 10) -> FilePosition:
    return FilePosition(inode, offset, "f", modified)


def test_a_renamed_file_is_sought_by_its_inode_under_any_name() -> None:
    live, old, other = (
        ListedFile("a.log", 7, 99, 30),
        ListedFile("a.log.gone", 5, 99, 20),
        ListedFile("a.log.1", 6, 99, 15),
    )
    assert candidates(at(5, 50), live, [other, old], "a.log") == [old, other, live]


def test_what_is_shorter_than_the_position_cannot_hold_it() -> None:
    assert (
        candidates(at(5, 50), ListedFile("a.log", 5, 49, 30), [ListedFile("a.log.1", 6, 49, 30)], "a.log")
        == []
    )


def test_a_copy_made_before_the_position_cannot_hold_it() -> None:
    live = ListedFile("a.log", 5, 99, 30)
    new, old = ListedFile("a.log.1", 6, 99, 10), ListedFile("a.log.2", 8, 99, 9)
    assert candidates(at(5, 50), live, [old, new], "a.log") == [live, new]


def test_after_a_file_comes_the_oldest_rotated_one_changed_later_and_at_last_the_live_one() -> None:
    live = ListedFile("a.log", 7, 9, 40)
    folder = [
        ListedFile("a.log.1", 6, 9, 30),
        ListedFile("a.log.2", 5, 9, 20),
        ListedFile("a.log.3", 4, 9, 10),
    ]
    assert successor(live, folder, "a.log", 10, None) == folder[1]
    assert successor(live, folder, "a.log", 20, None) == folder[0]
    assert successor(live, folder, "a.log", 30, None) == live
    assert successor(live, folder, "a.log", None, None) == live
    assert successor(None, folder, "a.log", 30, None) is None


def test_an_empty_file_is_not_gone_on_to() -> None:
    assert (
        successor(ListedFile("a.log", 7, 0, 40), [ListedFile("a.log.1", 6, 0, 30)], "a.log", 10, None) is None
    )


def test_a_file_is_not_its_own_successor() -> None:
    assert successor(None, [ListedFile("a.log.1", 6, 9, 30)], "a.log", 10, 6) is None


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
