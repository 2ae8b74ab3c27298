"""Pieces of pull inputs: what their headers say, and that each line is stored once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.metrics import Metrics
from agent.contract import ContractError, Letter, new_run, parse_letter
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint, UnknownOutcomeError
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.dead_letters import DeadLetterWriter
from agent.leaf.publish.pull_chunks import Fragment, PullChunkStore, whole
from agent.leaf.publish.pull_progress import MAX_LINES, Progress, Shape, bits, newest, parse_progress
from tests.harness.examples import costly

METRICS = Metrics()
texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30)


shapes = st.integers(0, MAX_LINES).flatmap(
    lambda lines: st.builds(Shape, st.just(lines), st.integers(0, lines), st.integers(0, 2**32 - 1))
)
progresses = st.builds(Progress, st.integers(1, 10**17), texts) | shapes.flatmap(
    lambda shape: st.builds(
        Progress,
        st.integers(1, 10**17),
        texts,
        st.integers(0, 2**shape.lines - 1),
        st.none() | texts,
        st.just(shape),
    )
)


@given(shapes, st.data())
def test_the_shape_of_a_piece_is_read_back_behind_its_lines(shape: Shape, data: st.DataObject) -> None:
    stored = data.draw(st.integers(0, 2**shape.lines - 1))
    progress = Progress(1, "p", stored, "b", shape)
    assert parse_progress(progress.encode()) == progress


@given(progresses)
def test_progress_is_read_back(progress: Progress) -> None:
    text = progress.encode()
    assert text.isascii()
    assert text.isprintable()
    assert parse_progress(text) == progress


@pytest.mark.parametrize("text", ["", "17", "{}", "0 - x", "1 - \n", "1 A 9 short", "1 A x y", "1 AAAAA - x"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="stored position"):
        parse_progress(text)


def test_the_newest_is_of_the_highest_piece_and_tells_most_of_it() -> None:
    found = [Progress(2, "b"), Progress(3, "c", 1, "b"), Progress(3, "c", 5, "b"), Progress(1, "a")]
    assert newest(found) == found[2]
    assert newest([*found, Progress(3, "c")]) == Progress(3, "c")
    assert newest([]) is None
    assert found[2].place() == ResumePoint("b", "c")
    assert found[0].place() == ResumePoint("b")


@given(st.sets(st.integers(0, MAX_LINES - 1), max_size=40))
def test_a_bitmap_holds_the_numbers(numbers: set[int]) -> None:
    bitmap = bits(sorted(numbers))
    assert {at for at in range(MAX_LINES) if bitmap >> at & 1} == numbers


def test_a_range_is_the_same_bitmap() -> None:
    assert bits(range(3, 9)) == bits(list(range(3, 9)))
    assert bits(range(0)) == 0


class _CrashError(BaseException):
    """The agent is killed."""


class Streams:
    """The streams of some classes, each message (subject, header, lines), and what goes wrong with them."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.trouble = 0.0
        self.messages: list[tuple[tuple[str, bool], str, list[str]]] = []
        self.remembered: list[dict[str, str]] = [{}]

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        bad = self.chance.random() < self.trouble
        kind = self.chance.choice(["crash", "crash after", "refuse", "unknown", "unknown after"])
        assert chunk.position is not None
        if chunk.count > 3 and not chunk.dead:
            raise RefusedError(RefusalReason.TOO_LARGE, "too large")
        if bad and kind == "refuse":
            raise RefusedError(RefusalReason.FULL, "full", 1.0)
        if not bad or kind.endswith("after"):
            rows = chunk.payload.splitlines()
            lines = [parse_letter(row).at if chunk.dead else str(json.loads(row)) for row in rows]
            assert len(lines) == chunk.count
            self.messages.append(((cls, chunk.dead), chunk.position, lines))
            self.remember(input_name, cls, chunk.position)
        if bad:
            raise _CrashError if kind.startswith("crash") else UnknownOutcomeError("no answer")

    async def recall(self, _input: str) -> Progress | None:
        last = {subject: position for subject, position, _ in self.messages}
        return newest(map(parse_progress, [*last.values(), *self.remembered[-1].values()]))

    def remember(self, _input: str, cls: str, text: str) -> None:
        self.remembered.append({**self.remembered[-1], cls: text})

    def crash(self) -> None:
        """Of what the state file was told, the last is lost."""
        del self.remembered[self.chance.randint(1, len(self.remembered)) :]


class Tailer:
    """A pull input whose position is a number of lines; every fifth line is bad. `classes` are what the rules
    of this start make of each line, None to drop it."""

    def __init__(self, lines: int, streams: Streams, classes: list[str | None]) -> None:
        self.lines, self.streams, self.classes = lines, streams, classes
        ledgers = {cls: ClassLedger("d", cls, new_run()) for cls in ("a", "b", "c")}
        dead_letters = DeadLetterWriter(streams.submit, ledgers, METRICS)
        for limit in dead_letters._limits.values():
            limit._at, limit._room = float("inf"), streams.chance.choice([0.0, 800.0, 1e6])
        self.store = PullChunkStore(streams.submit, dead_letters, streams.recall, streams.remember)
        self.dropped: set[int] = set()

    async def run(self) -> None:
        place = await self.store.place("tail")
        while int(place.position or 0) < self.lines:
            start = int(place.position or 0)
            end = int(place.until or min(self.lines, start + self.streams.chance.randint(1, 12)))
            await self._insist(range(start, end))
            place = ResumePoint(str(end))

    async def _insist(self, numbers: range) -> None:
        while True:
            try:
                return await self._submit(numbers)
            except RefusedError:
                continue
            except UnknownOutcomeError:
                if (await self.store.place("tail")).position == str(numbers.stop):
                    return None

    async def _submit(self, numbers: range) -> None:
        good = [number for number in numbers if number % 5]
        letters = tuple(Letter(b"", str(number), "bad") for number in numbers if number % 5 == 0)
        payload = "".join(f"{number}\n" for number in good).encode()
        chunk = Chunk(payload, len(good), position=str(numbers.stop), letters=letters)
        stored = await self.store.stored("tail", chunk)
        if stored is None:
            return
        routed: dict[str, list[int]] = {}
        for at, number in enumerate(good):
            cls = self.classes[number]
            if cls is None:
                self.dropped.add(number)
            elif not stored >> at & 1:
                routed.setdefault(cls, []).append(at)
        parts = [
            Fragment(cls, "".join(f"{good[at]}\n" for at in ats).encode(), len(ats), ats)
            for cls, ats in routed.items()
        ]
        await self.store.store("tail", "a", chunk, parts)


@costly(100)
@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_each_line_is_stored_once_wherever_the_agent_dies_and_whatever_the_rules_become(
    chance: Random, lines: int
) -> None:
    streams = Streams(chance)
    dropped: set[int] = set()
    for start in range(8):
        classes = [chance.choice(["a", "b", "c", None]) for _ in range(lines)]
        tailer = Tailer(lines, streams, classes)
        streams.trouble = 0.3 if start < 7 else 0.0
        try:
            asyncio.run(tailer.run())
        except _CrashError:
            streams.crash()
        dropped |= tailer.dropped
    stored = Counter(
        int(line) for (_, dead), _, rows in streams.messages for line in rows if not dead or int(line) % 5
    )
    buried = Counter(int(line) for (_, dead), _, rows in streams.messages if dead for line in rows)
    assert set(stored.values()) <= {1}
    assert {number for number in range(lines) if number % 5} - dropped <= stored.keys()
    assert {number for number in buried if number % 5 == 0} <= set(range(0, lines, 5))
    assert set(buried.values()) <= {1}


def test_a_reading_that_is_too_large_alone_becomes_a_dead_letter() -> None:
    kept: list[tuple[bool, bytes, Progress]] = []

    async def submit(_input: str, _cls: str, chunk: Chunk) -> None:
        if b"x" * 50 in chunk.payload and not chunk.dead:
            raise RefusedError(RefusalReason.TOO_LARGE, "too large for this server")
        assert chunk.position is not None
        kept.append((chunk.dead, chunk.payload, parse_progress(chunk.position)))

    async def recall(_input: str) -> None:
        return None

    async def course() -> None:
        dead_letters = DeadLetterWriter(submit, {"a": ClassLedger("d", "a", new_run())}, Metrics())
        store = PullChunkStore(submit, dead_letters, recall, lambda *_: None)
        payload = b'"1"\n"' + b"x" * 50 + b'"\n"3"\n'
        await store.store("tail", "a", Chunk(payload, 3, position="9"), [whole("a", payload, 3)])

    asyncio.run(course())
    assert [payload for dead, payload, _ in kept if not dead] == [b'"1"\n', b'"3"\n']
    (letter,) = [parse_letter(payload) for dead, payload, _ in kept if dead]
    assert letter.reason == "too large for this server"
    assert [progress.place() for _, _, progress in kept] == [
        ResumePoint(None, "9"),
        ResumePoint(None, "9"),
        ResumePoint("9"),
    ]


async def test_letters_beyond_the_limit_are_counted_once_however_often_their_piece_is_refused() -> None:
    ledger, refusals = ClassLedger("d", "a", new_run()), 3

    async def submit(_input: str, _cls: str, chunk: Chunk) -> None:
        nonlocal refusals
        if chunk.position == "2 - 9" and refusals:
            refusals -= 1
            raise RefusedError(RefusalReason.FULL, "full", 1.0)

    async def recall(_input: str) -> Progress:
        return Progress(1, "4")

    dead_letters = DeadLetterWriter(submit, {"a": ledger}, Metrics())
    dead_letters._limits["a"]._at, dead_letters._limits["a"]._room = float("inf"), 0.0
    store = PullChunkStore(submit, dead_letters, recall, lambda *_: None)
    letters = tuple(Letter(b"x", f"f:{number}", "bad") for number in range(5))
    chunk = Chunk(b'"1"\n', 1, position="9", letters=letters)
    for _ in range(3):
        with pytest.raises(RefusedError):
            await store.store("tail", "a", chunk, [whole("a", chunk.payload, 1)])
    await store.store("tail", "a", chunk, [whole("a", chunk.payload, 1)])
    assert (ledger.readings.accepted, ledger.readings.dead) == (5, 5)
    assert await store.piece("tail", chunk) == (2, None)


def test_what_is_left_out_is_not_in_the_whole() -> None:
    part = whole("a", b"0\n1\n2\n3\n", 4, left_out=0b0101)
    assert (part.payload, part.count, list(part.numbers)) == (b"1\n3\n", 2, [1, 3])
