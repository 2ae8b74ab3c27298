"""A record that is written in place."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.files import SLOT, SlotFile, write_private
from agent.base.storage import file_system


def test_a_file_that_is_not_there_has_no_record(tmp_path: Path) -> None:
    assert SlotFile(tmp_path / "slots").read() == []


def test_the_newest_record_comes_first_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    for number in range(5):
        assert SlotFile(tmp_path / "slots").write(b"%d" % number)
    assert SlotFile(tmp_path / "slots").read() == [b"4", b"3"]
    assert (tmp_path / "slots").stat().st_size == 2 * SLOT
    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o600


def test_a_record_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "slots")
    assert file.write(b"before")
    assert not file.write(bytes(SLOT))
    assert file.read() == [b"before"]


@given(data=st.data(), records=st.lists(st.binary(max_size=60), min_size=2, max_size=4))
def test_whatever_is_left_of_the_last_write_the_one_before_it_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, records: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("slots") / "slots"
    file = SlotFile(path)
    for record in records[:-1]:
        file.write(record)
    before = path.read_bytes()
    file.write(records[-1])
    after = path.read_bytes()
    at = data.draw(st.integers(0, len(after)))
    path.write_bytes(after[:at] + before[at:])
    found = SlotFile(path).read()
    assert records[-2] in found
    assert found[0] in records[-2:]
    assert SlotFile(path).write(b"next")
    assert SlotFile(path).read()[0] == b"next"


@pytest.fixture
def little_room() -> Iterator[int]:
    """Bytes that a file of this process may have, a little more than one slot."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = SLOT + 5_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield room
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_of_which_the_disk_takes_a_part_is_not_called_written(
    tmp_path: Path, little_room: int
) -> None:
    with pytest.raises(OSError, match="too large"):
        SlotFile(tmp_path / "slots").write(bytes(20_000))
    assert (tmp_path / "slots").stat().st_size == little_room
    assert SlotFile(tmp_path / "slots").read() == []


def test_what_a_disk_has_no_room_for_is_named_and_leaves_what_was_there(
    tmp_path: Path, little_room: int
) -> None:
    path = tmp_path / "state.json"
    write_private(path, b"before")
    with pytest.raises(OSError, match=f"too large: '{path}'"):
        write_private(path, bytes(little_room + 1))
    assert [found.read_bytes() for found in tmp_path.iterdir()] == [b"before"]


def test_the_file_system_of_a_path_is_that_of_the_mount_that_it_is_below() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/proc/../sys")) == "sysfs"
