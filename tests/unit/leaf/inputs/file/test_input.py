"""The input `file` against a core that refuses, hangs and forgets to answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from agent import contract
from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.config import Seconds, Size
from agent.leaf.inputs.file import FileOptions
from agent.leaf.inputs.file.input import FileInput
from agent.leaf.inputs.file.positions import Fingerprint, begin, encode
from agent.leaf.inputs.formats import Format, split_valid
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint, UnknownOutcomeError
from tests.harness.intakes import NoLetters
from tests.harness.wait import until

NOW = 1_700_000_000_000_000_000
GOOD = st.builds(lambda n: f'{{"metric":"m","value":{n},"ts":1,"device":"d"}}'.encode(), st.integers(0, 99))
BAD = st.sampled_from([b"nonsense", b"{}", b'{"metric":"m","value":NaN}', b"\xff", b'{"metric":"m"'])


class Core(NoLetters):
    """Stores chunks in memory; `answers` are raised by the next submits, one each. A chunk of nothing only
    keeps its position."""

    domain = "edge-1"

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.kept: str | None = None
        self.answers: list[Exception] = []
        self.submitted = 0

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        assert (input_name, cls) == ("tail", "normal")
        if not chunk.count and not chunk.letters:
            self.kept = chunk.position
            return
        self.submitted += 1
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, StoredAfterAllError):
                self._store(chunk)
            raise answer
        self._store(chunk)

    def _store(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.kept = chunk.position

    async def position(self, input_name: str) -> ResumePoint:
        return ResumePoint(self.kept)

    @property
    def values(self) -> list[int]:
        lines = b"".join(chunk.payload for chunk in self.chunks).splitlines()
        return [json.loads(line)["value"] for line in lines]


class StoredAfterAllError(UnknownOutcomeError):
    """The outcome was not known, and it was stored."""


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ndjson"


@asynccontextmanager
async def running(
    path: Path, core: Core, metrics: Metrics | None = None, form: Format = "ndjson", **more: Any
) -> AsyncIterator[None]:
    options = FileOptions(path=str(path), name="tail", poll=Seconds(0.01), format=form, **more)
    stopping = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(FileInput(options, metrics or Metrics()).run(core, stopping))
        yield
        stopping.set()


def put(path: Path, text: str) -> None:
    path.write_text(text)


def rotate(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.1"))


def write(path: Path, *values: object) -> None:
    with path.open("a") as file:
        file.writelines(f'{{"metric":"m","value":{value}}}\n' for value in values)


@given(st.lists(st.one_of(GOOD, BAD, st.just(b""))))
def test_good_lines_go_on_and_bad_ones_are_named_by_their_offset(lines: list[bytes]) -> None:
    parsed = split_valid(b"".join(line + b"\n" for line in lines), "edge-1", NOW)
    assert parsed.payload.splitlines() == [
        line for line in lines if line.startswith(b'{"metric":"m","value":') and line.endswith(b'"d"}')
    ]
    assert parsed.count == parsed.payload.count(b"\n")
    offsets = [sum(len(line) + 1 for line in lines[:index]) for index in range(len(lines))]
    bad = [offset for offset, line in zip(offsets, lines, strict=True) if line and not line.endswith(b'"d"}')]
    assert [offset for offset, _ in parsed.bad] == bad


@pytest.mark.parametrize("size", [200_000, 300_000, 1_000_000])
async def test_long_lines_are_read_among_short_ones(path: Path, size: int) -> None:
    core, long = Core(), [1.25e-100] * (size // 12)
    write(path, *range(3), long, 4, long, *range(6, 10_000))
    async with running(path, core, line=Size(2**21)):
        await until(lambda: len(core.values) == 10_000, "all lines are read")
    due: list[Any] = list(range(10_000))
    due[3] = due[5] = long
    assert core.values == due
    assert all(len(chunk.payload) < 2 * size + 2**19 for chunk in core.chunks)


async def test_a_line_longer_than_the_option_is_passed_over(path: Path) -> None:
    core, metrics = Core(), Metrics()
    write(path, 1, [1.5] * 300_000, 2)
    async with running(path, core, metrics, line=Size(2**20)):
        await until(lambda: core.values == [1, 2], "the others are read")
    assert metrics.registry.get_sample_value(
        "petiole_invalid_requests_total", {"input": "tail", "reason": "too_long"}
    )


async def test_a_reading_that_no_message_can_hold_is_a_dead_letter(path: Path) -> None:
    core = Core()
    core.answers = [RefusedError(RefusalReason.TOO_LARGE, "9 bytes compressed, the local server takes 8")]
    write(path, 1)
    async with running(path, core):
        await until(lambda: len(core.chunks) == 1, "the letter is stored")
        write(path, 2)
        await until(lambda: core.values == [2], "the next line is read")
    (letter,) = core.chunks[0].letters
    assert json.loads(letter.received)["value"] == 1
    assert letter.reason == "9 bytes compressed, the local server takes 8"


async def test_what_is_refused_is_handed_in_again_and_said_once(path: Path, logged: list[EventDict]) -> None:
    core = Core()
    core.answers = [RefusedError(RefusalReason.FULL, "the stream is full", 0.01) for _ in range(5)]
    write(path, 1, 2)
    async with running(path, core):
        await until(lambda: core.values == [1, 2])
        write(path, 3)
        await until(lambda: core.values == [1, 2, 3])
    assert [entry["event"] for entry in logged] == ["the stream is full", "lines are stored again"]


async def test_a_file_of_which_nothing_could_be_stored_is_read_after_its_rotation_between_two_runs(
    path: Path,
) -> None:
    core = Core()
    core.answers = [RefusedError(RefusalReason.FULL, "the stream is full", 0.01) for _ in range(1000)]
    write(path, 1, 2)
    async with running(path, core):
        await until(lambda: core.submitted > 1, "the lines are refused")
    rotate(path)
    write(path, 3)
    core.answers.clear()
    async with running(path, core):
        await until(lambda: core.values == [1, 2, 3], "the rotated file is read first")


async def test_a_file_that_was_not_there_is_read_after_its_rotation_between_two_runs(
    path: Path, logged: list[EventDict]
) -> None:
    core = Core()
    async with running(path, core):
        await until(lambda: bool(logged), "a warning says that there is no file")
        await until(lambda: bool(core.notes.texts), "what comes next is known")
    write(path, 1)
    rotate(path)
    write(path, 2)
    async with running(path, core):
        await until(lambda: core.values == [1, 2], "the rotated file is read first")


async def test_what_is_stored_in_part_is_gone_on_with_before_a_position_is_kept(path: Path) -> None:
    class HalfStored(Core):
        """Holds a part of lines that end where no file has them any more."""

        async def position(self, input_name: str) -> ResumePoint:
            end = begin(9, str(path), 7).at(9, Fingerprint(b"gone"))
            return ResumePoint(self.kept, None if self.chunks else encode(1, [end]))

        async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
            assert chunk.count or self.chunks, "the lines come first"
            await super().submit(input_name, cls, chunk)

    core = HalfStored()
    write(path, 1)
    async with running(path, core):
        await until(lambda: core.values == [1], "the lines are stored")


@pytest.mark.parametrize("outcome", [StoredAfterAllError, UnknownOutcomeError])
async def test_an_unknown_outcome_is_found_out_before_going_on(
    path: Path, outcome: type[UnknownOutcomeError]
) -> None:
    core = Core()
    core.answers = [outcome("not answered")]
    write(path, 1, 2)
    async with running(path, core):
        await until(lambda: len(core.chunks) == 1)
        write(path, 3)
        await until(lambda: len(core.chunks) == 2)
    assert core.values == [1, 2, 3]


async def test_bad_lines_are_counted_all_and_reported_a_few(path: Path, logged: list[EventDict]) -> None:
    core, metrics = Core(), Metrics()
    write(path, 1, *["nonsense"] * 50, 2)
    async with running(path, core, metrics):
        await until(lambda: core.values == [1, 2])
        await until(lambda: len(logged) == 5)
    bad = {"input": "tail", "reason": "bad_line"}
    assert metrics.registry.get_sample_value("petiole_invalid_requests_total", bad) == 50
    assert logged[0]["at"] == f"{path}:25"


async def test_line_protocol_is_read_in_pieces_that_hold_what_a_batch_may(path: Path) -> None:
    core = Core()
    fields = ",".join(f"f{number}={number}i" for number in range(100))
    put(path, f"m,host=d {fields} 1700000000000000000\n" * 120 + "nonsense\nm last=7i\nm cut=1")
    async with running(path, core, form="influx"):
        await until(lambda: len(core.values) == 12_001)
        rotate(path)
        write(path, "x")
        await until(lambda: sum(len(chunk.letters) for chunk in core.chunks) == 3)
    assert all(chunk.count + len(chunk.letters) <= contract.MAX_BATCH_READINGS for chunk in core.chunks)
    assert core.values == [*range(100)] * 120 + [7]
    letters = [letter for chunk in core.chunks for letter in chunk.letters]
    assert [letter.received for letter in letters[:2]] == [b"nonsense", b"m cut=1"]


async def test_a_line_of_more_fields_than_a_batch_may_have_is_a_dead_letter(path: Path) -> None:
    core = Core()
    fields = ",".join(f"f{number}=1i" for number in range(contract.MAX_BATCH_READINGS + 1))
    put(path, f"m {fields}\nm f=2i\n")
    async with running(path, core, form="influx"):
        await until(lambda: core.values == [2])
    (letter,) = [letter for chunk in core.chunks for letter in chunk.letters]
    assert letter.reason == "this line has 5001 fields, above 5000"


async def test_what_cannot_be_read_is_said_once_and_again_when_it_can(
    path: Path, logged: list[EventDict]
) -> None:
    core, metrics = Core(), Metrics()
    Path.mkdir(path)

    def up() -> float | None:
        return metrics.registry.get_sample_value("petiole_input_up", {"input": "tail"})

    async with running(path, core, metrics):
        await until(lambda: bool(logged) and up() == 0)
        Path.rmdir(path)
        write(path, 1)
        await until(lambda: core.values == [1] and up() == 1)
    events = [entry["event"] for entry in logged]
    assert events[0] == f"{path}: not a regular file; nothing is read there until that is over"
    assert [event for event in events if "again" in event] == ["all files can be read again"]


async def test_a_position_that_cannot_be_read_stops_the_input_rather_than_begin_anew(path: Path) -> None:
    core = Core()
    core.kept = '{"v":3}'
    write(path, 1)
    with pytest.raises(ExceptionGroup) as raised:
        async with running(path, core):
            await asyncio.Event().wait()
    assert raised.group_contains(contract.ContractError, match="stored position")
    assert core.submitted == 0


async def test_it_stops_while_the_core_does_not_answer(path: Path) -> None:
    class Silent(Core):
        async def position(self, input_name: str) -> ResumePoint:
            await asyncio.Event().wait()
            return ResumePoint()

    async with running(path, Silent()):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("poll", "make"), [(0.0, Path.touch), (0.25, Path.mkdir)])
def test_options_that_cannot_work_are_named(path: Path, poll: float, make: Callable[[Path], None]) -> None:
    make(path)
    assert len(problems([FileInput(FileOptions(path=str(path), poll=Seconds(poll)), Metrics())])) == 1


def test_a_file_that_is_not_there_yet_is_no_problem(path: Path) -> None:
    assert problems([FileInput(FileOptions(path=str(path)), Metrics())]) == []
