"""The state file."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from agent.base.files import write_private
from agent.base.machine import machine_id
from agent.contract import LOST_STREAMS, Checkpoint, Readings, new_epoch, new_run
from agent.leaf import state_file as module
from agent.leaf.state import VERSION, Acked, Checkpoints, PullPosition, State
from agent.leaf.state_file import LATEST_NAME, StateError, StateFile, load
from tests.harness.wait import until

DOMAIN = "edge-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a state file may stand."""
    return tmp_path / "state.json"


def full_state() -> State:
    """A state with something in every field."""
    acked = Acked(new_run(), 7, 70, "2026-11-21T06:00:00Z", Readings(5, 4, 1), closed=True)
    return State(
        VERSION,
        machine_id(),
        DOMAIN,
        epochs={"normal": new_epoch()},
        acked={"normal": acked},
        previous={"normal": acked},
        checkpoint={"normal": Checkpoint(1, "id", "TELEMETRY_0", 2)},
        positions={"normal": {"tail": PullPosition("12", 3)}},
        command="c-1",
        command_epoch=new_epoch(),
        earlier={"normal": [Checkpoints(new_run(), "TELEMETRY_0", [(1, 2, "-3", 4)])]},
    )


def test_a_first_start_begins_with_an_empty_state(path: Path) -> None:
    assert load(path, DOMAIN) == State(VERSION, machine_id(), DOMAIN)
    assert not path.exists()


async def test_what_was_saved_is_read_back(path: Path) -> None:
    state = full_state()
    await StateFile(path, state).save()
    assert load(path, DOMAIN) == state


def test_a_file_is_for_its_owner_alone(path: Path) -> None:
    write_private(path, b"x")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"version":1,"domain":"\xff"}',
        b"[]",
        b'{"version":1}',
        b'{"version":1,"machine":"m","domain":"edge-1","epochs":{"normal":7}}',
        b'{"version":1,"machine":"m","domain":"edge-1","epochs":{"normal":"no epoch"}}',
        b'{"version":1,"machine":"m","domain":"edge-1","command_epoch":"no epoch"}',
        b'{"version":1,"machine":"m","domain":"edge-1","acked":{"normal":{}}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused_with_what_to_do(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(StateError, match=r"state.json is damaged .*move it away"):
        load(path, DOMAIN)


@pytest.mark.parametrize("version", ["2", "0", "null", '"1"'])
def test_a_file_of_another_version_is_refused_with_what_to_do(path: Path, version: str) -> None:
    path.write_text(f'{{"version":{version},"of":"the future"}}')
    with pytest.raises(StateError, match=r"another release.*install that release"):
        load(path, DOMAIN)


async def test_a_file_of_another_domain_is_refused(path: Path) -> None:
    await StateFile(path, full_state()).save()
    with pytest.raises(StateError, match="is of domain 'edge-1', the configuration says 'edge-2'"):
        load(path, "edge-2")


def test_fields_of_a_newer_release_of_the_same_version_are_passed_over(path: Path) -> None:
    path.write_text('{"version":1,"machine":"m","domain":"edge-1","more":[1]}')
    assert load(path, DOMAIN).domain == DOMAIN


@pytest.mark.skipif(not Path("/etc/machine-id").exists(), reason="this machine has no id to compare with")
def test_a_copied_file_gets_the_id_of_this_machine(path: Path) -> None:
    path.write_text('{"version":1,"machine":"another","domain":"edge-1"}')
    assert load(path, DOMAIN).machine == machine_id()


def test_a_machine_without_an_id_keeps_the_one_it_was_given(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr("agent.base.machine._MACHINE_ID", path)
    assert machine_id("known") == "known"
    assert machine_id() != machine_id()


async def test_a_crash_between_write_and_rename_leaves_the_old_state(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    state = full_state()
    file = StateFile(path, state)
    await file.save()

    def crash(*_: object) -> None:
        raise OSError("power cut")

    state.command = "c-2"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(OSError, match="power cut"):
            await file.save()
    assert load(path, DOMAIN).command == "c-1"
    await file.save()
    assert load(path, DOMAIN).command == "c-2"


def test_what_is_written_is_on_disk_before_it_gets_its_name(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    seen: list[str] = []
    rename = Path.replace

    def replace(one: Path, to: Path) -> Path:
        seen.append("rename")
        return rename(one, to)

    monkeypatch.setattr(os, "fsync", lambda _: seen.append("fsync"))
    monkeypatch.setattr(Path, "replace", replace)
    write_private(path, b"x")
    assert seen == ["fsync", "rename", "fsync"]


async def test_marked_changes_are_written_soon(path: Path) -> None:
    file = StateFile(path, full_state())
    task = asyncio.create_task(file.run())
    file.current.command = "c-3"
    file.mark()
    await until(lambda: path.exists() and load(path, DOMAIN).command == "c-3", "the change is on disk")
    task.cancel()


async def test_a_disk_that_refuses_is_tried_again_until_it_takes_the_change(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    file = StateFile(folder / "state.json", full_state())
    with pytest.raises(OSError):
        await file.save()
    task = asyncio.create_task(file.run())
    await asyncio.sleep(0)
    folder.mkdir()
    await until(lambda: (folder / "state.json").exists(), "the change is on disk")
    task.cancel()


async def test_a_save_that_was_given_up_does_not_overtake_a_later_one(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    file = StateFile(path, full_state())
    real = write_private
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(to: Path, data: bytes) -> None:
        if b'"old"' in data:
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
        real(to, data)

    monkeypatch.setattr(module, "write_private", slow)
    file.current.command = "old"
    first = asyncio.create_task(file.save())
    await asyncio.sleep(0.05)
    first.cancel()
    file.current.command = "new"
    second = asyncio.create_task(file.save())
    await asyncio.sleep(0.05)
    held.set()
    await second
    assert load(path, DOMAIN).command == "new"


def test_only_so_many_lost_streams_are_remembered(tmp_path: Path) -> None:
    state = State(VERSION, "machine", "edge-1")
    for number in range(LOST_STREAMS + 3):
        state.lose("normal", Acked("run", 1, number, f"made {number}", Readings()))
    (tmp_path / "s").write_bytes(msgspec.json.encode(state))
    found = load(tmp_path / "s", "edge-1").lost["normal"]
    assert [one.last for one in found] == list(range(3, LOST_STREAMS + 3))


async def test_the_positions_of_a_lost_state_file_are_read_from_their_own(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save_positions()
    assert load(path, DOMAIN) == State(VERSION, machine_id(), DOMAIN, positions=full_state().positions)
    assert load(path, "edge-2").positions == {}


async def test_positions_are_written_again_only_when_an_input_has_moved(path: Path) -> None:
    file, beside = StateFile(path, full_state()), path.with_name("positions.json")
    await file.save_positions()
    before = beside.stat().st_ino
    await file.save_positions()
    assert beside.stat().st_ino == before
    file.current.place("tail", "normal", PullPosition("13", 4))
    await file.save_positions()
    assert load(path, DOMAIN).positions == {"normal": {"tail": PullPosition("13", 4)}}


async def test_positions_that_are_saved_twice_at_once_are_the_newest_on_disk(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    file, real = StateFile(path, full_state()), write_private
    begun, other = threading.Event(), threading.Event()

    def slow(to: Path, data: bytes) -> None:
        if b'"12"' in data:
            begun.set()
            other.wait(0.2)
        real(to, data)
        other.set()

    monkeypatch.setattr(module, "write_private", slow)
    first = asyncio.create_task(file.save_positions())
    await asyncio.to_thread(begun.wait)
    file.current.place("tail", "normal", PullPosition("13", 4))
    await asyncio.gather(first, file.save_positions())
    assert load(path, DOMAIN).positions == {"normal": {"tail": PullPosition("13", 4)}}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version":2,"domain":"edge-1","positions":{}}', b"\xff"]
)
def test_positions_that_cannot_be_read_count_as_none_and_are_said(
    path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path.with_name("positions.json").write_bytes(data)
    assert load(path, DOMAIN).positions == {}
    assert "positions" in "".join(capsys.readouterr())


def test_an_input_with_a_position_is_not_lost_any_more() -> None:
    state = State(VERSION, "m", DOMAIN, unplaced=["tail", "other"])
    state.place("tail", "normal", PullPosition("1", 1))
    assert state.unplaced == ["other"]


def content(path: Path) -> bytes:
    """What is in a file."""
    return path.read_bytes()


async def written_in_place(path: Path, file: StateFile) -> None:
    """Wait until what is noted is on disk, and end the file's writer."""
    task = asyncio.create_task(file.run())
    await until(lambda: load(path, DOMAIN).acked == file.current.acked, "the change is on disk")
    task.cancel()


async def test_what_changes_with_each_batch_is_written_beside_the_state(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save()
    before = content(path)
    for n in (8, 9, 10):
        acked = structs.replace(file.current.acked["normal"], n=n)
        file.current.acked["normal"] = acked
        file.current.place("tail", "normal", PullPosition(str(n), n))
        file.note()
        await written_in_place(path, file)
        assert load(path, DOMAIN) == file.current
    assert content(path) == before


@pytest.mark.parametrize("behind", ["for a minute", "by a checkpoint"])
async def test_where_there_is_no_room_for_the_whole_state_what_changes_with_each_batch_is_written(
    monkeypatch: pytest.MonkeyPatch, path: Path, behind: str
) -> None:
    file = StateFile(path, full_state())
    await file.save()
    in_the_way = path.with_name(f".{path.name}.new")
    in_the_way.mkdir()
    file.current.acked["normal"] = structs.replace(file.current.acked["normal"], n=8)
    file.current.place("tail", "normal", PullPosition("13", 8))
    if behind == "by a checkpoint":
        file.current.checkpoint["normal"] = Checkpoint(2, "id", "TELEMETRY_0", 3)
        file.note_checkpoint()
    else:
        monkeypatch.setattr(module, "WHOLE_SECONDS", 0.0)
        file.note()
    await written_in_place(path, file)
    assert load(path, DOMAIN).positions == file.current.positions
    in_the_way.rmdir()
    task = asyncio.create_task(file.run())
    await until(lambda: load(path, DOMAIN) == file.current, "all of it is on disk")
    task.cancel()


async def test_what_must_not_be_told_apart_is_not_written_beside_an_older_state(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save()
    before = load(path, DOMAIN)
    in_the_way = path.with_name(f".{path.name}.new")
    in_the_way.mkdir()
    acked = file.current.acked["normal"]
    file.current.lose("normal", acked)
    file.current.acked["normal"] = structs.replace(acked, created="2026-11-21T09:00:00Z")
    with pytest.raises(OSError):
        await file.save()
    file.note()
    file.note_checkpoint()
    with capture_logs() as logged:
        task = asyncio.create_task(file.run())
        await until(lambda: bool(logged), "it was tried")
    assert load(path, DOMAIN) == before, "the loss would be forgotten"
    task.cancel()


async def test_what_was_written_beside_another_state_is_left_out(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save()
    before, acked = content(path), file.current.acked["normal"]
    await file.save()
    file.current.acked["normal"] = structs.replace(acked, n=8)
    file.note()
    await written_in_place(path, file)
    write_private(path, before)
    assert load(path, DOMAIN).acked["normal"] == acked


async def test_a_change_that_was_not_written_to_its_end_leaves_the_one_before(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save()
    for n in (8, 9):
        file.current.acked["normal"] = structs.replace(file.current.acked["normal"], n=n)
        file.note()
        await written_in_place(path, file)
    latest = path.with_name(LATEST_NAME)
    data = content(latest)
    at = data.index(b'"n":9')
    write_private(latest, data[:at] + b"?" * 4 + data[at + 4 :])
    assert load(path, DOMAIN).acked["normal"].n == 8


async def test_what_is_too_much_for_the_small_file_is_in_the_whole_one(path: Path) -> None:
    file = StateFile(path, full_state())
    await file.save()
    for number in range(20):
        file.current.place(f"tail-{number}", "normal", PullPosition("x" * 8_000, number))
    file.current.acked["normal"] = structs.replace(file.current.acked["normal"], n=8)
    file.note()
    await written_in_place(path, file)
    assert load(path, DOMAIN) == file.current
