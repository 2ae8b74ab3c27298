"""The newest value of each source over starts of an input."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from agent.leaf.inputs.shared import value_memory
from agent.leaf.inputs.shared.value_memory import SourceValue, ValueMemory, value_of


def started(directory: Path | None) -> ValueMemory:
    made = ValueMemory(None if directory is None else directory / "mqtt.values", structlog.get_logger("test"))
    made.load()
    return made


def stored(values: ValueMemory, *given: SourceValue) -> None:
    values.remember({value.source: value.content for value in given})


def test_the_newest_value_of_each_source_is_known_after_a_start(tmp_path: Path) -> None:
    first, second, other = value_of(b"t", b"1", "d"), value_of(b"t", b"2", "d"), value_of(b"u", b"1", "d")
    values = started(tmp_path / "mqtt")
    stored(values, first, other)
    stored(values, second)
    for remembered in (values, started(tmp_path / "mqtt")):
        assert [remembered.is_known(value) for value in (first, second, other)] == [False, True, True]
        assert not remembered.is_known(value_of(b"t", b"2", "another name"))


def test_what_a_power_cut_left_of_a_file_is_read(tmp_path: Path) -> None:
    given = [value_of(b"t%d" % number, b"1") for number in range(5)]
    stored(started(tmp_path), *given)
    file = tmp_path / "mqtt.values"
    data = file.read_bytes()
    file.write_bytes(data[:32] + bytes(16) + data[48:-5])
    values = started(tmp_path)
    assert [values.is_known(value) for value in given] == [True, False, True, True, False]
    stored(values, *given)
    assert all(started(tmp_path).is_known(value) for value in given)


@pytest.mark.parametrize("directory", [True, False])
def test_sources_beyond_the_bound_replace_those_silent_for_longest(
    tmp_path: Path, directory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_memory, "MAX_SOURCES", 3)
    given = [value_of(b"t%d" % number, b"1") for number in range(5)]
    values = started(tmp_path if directory else None)
    for value in (*given[:3], given[0], *given[3:]):
        stored(values, value)
    for remembered in (values, started(tmp_path)) if directory else (values,):
        assert [remembered.is_known(value) for value in given] == [True, False, False, True, True]


def test_a_file_of_another_format_and_a_directory_that_takes_none_are_reported(tmp_path: Path) -> None:
    (tmp_path / "mqtt.values").write_bytes(b"something else!!" + bytes(64))
    (tmp_path / "file").touch()
    value = value_of(b"t", b"1")
    with capture_logs() as told:
        values = started(tmp_path)
        stored(values, value)
        nowhere = started(tmp_path / "file" / "mqtt")
        stored(nowhere, value)
    assert values.is_known(value)
    assert started(tmp_path).is_known(value)
    for reason in ("another format", "Not a directory"):
        assert reason in str(told)
