"""What is kept for pull inputs beside their positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Doubt
from agent.leaf.events import StoreLost
from agent.leaf.input_notes import InputNotes
from agent.leaf.state import PullPosition, State
from agent.leaf.state_file import StateFile, load


@pytest.fixture
def state(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "state.json", load(tmp_path / "state.json", "edge-1"))


async def test_a_text_survives_and_one_that_was_never_kept_is_none(tmp_path: Path, state: StateFile) -> None:
    notes = InputNotes(tmp_path, state)
    assert await notes.kept("file") is None
    await notes.keep("file", "1")
    await notes.keep("file", "2")
    assert await InputNotes(tmp_path, state).kept("file") == "2"


async def test_a_doubt_is_on_disk_and_a_later_one_of_the_same_place_takes_its_place(
    tmp_path: Path, state: StateFile
) -> None:
    notes = InputNotes(tmp_path, state)
    first = Doubt("twice", "file", "/x/a.log", "was restored", 1)
    second = Doubt("twice", "file", "/x/a.log", "was restored again", 2)
    other = Doubt("lacks", "file", "/x/a.log", "was cut", 1)
    for doubt in (first, other, second):
        await notes.doubt("normal", doubt)
    assert load(tmp_path / "state.json", "edge-1").doubts == {"normal": [other, second]}


@pytest.mark.parametrize("found_by_hub", [True, False])
def test_inputs_are_named_whose_position_was_restored_with_the_store(
    tmp_path: Path, state: StateFile, found_by_hub: bool
) -> None:
    current: State = state.current
    current.place("file", "normal", PullPosition("1 - {}", 3))
    InputNotes(tmp_path, state).store_lost(StoreLost("normal", found_by_hub))
    named = [(doubt.kind, doubt.input, doubt.where) for doubt in current.doubts.get("normal", [])]
    assert named == ([("twice", "file", "all files")] if found_by_hub else [])


def test_a_stale_position_is_told_once(tmp_path: Path, state: StateFile) -> None:
    state.current.stale = ["file"]
    notes = InputNotes(tmp_path, state)
    assert not notes.take_stale("other")
    assert notes.take_stale("file")
    assert not notes.take_stale("file")
