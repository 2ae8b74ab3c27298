"""Positions and the order of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.file.rotation import (
    FINGERPRINT_BYTES,
    FilePosition,
    Fingerprint,
    ListedFile,
    candidates,
    is_rotated,
    live_names,
    successor,
)


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
