"""What came is stored in the order in which it came, and many senders share one chunk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from agent.base.metrics import Metrics
from agent.contract import Letter
from agent.leaf.inputs.exec import ExecOptions
from agent.leaf.inputs.formats import make_parser
from agent.leaf.inputs.shared.gatherer import Buffer, GatheredSource, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, UnknownOutcomeError

REFUSED = RefusedError(RefusalReason.UNAVAILABLE, "the server is away", 0.01)


class Core:
    """Refuses what it is asked to, and stores the rest after a moment, as a server does."""

    domain = "edge-1"

    def __init__(self, *refusals: Exception) -> None:
        self.stored: list[bytes] = []
        self.letters: list[Letter] = []
        self.most = self._under_way = 0
        """The most that was under way at once."""
        self._refusals = deque(refusals)

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        if self._refusals:
            raise self._refusals.popleft()
        self.stored.append(chunk.payload)
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await asyncio.sleep(0.01)
        self._under_way -= 1

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        self.letters += letters


def submitter(core: Core, stopping: asyncio.Event) -> RetryingSubmitter:
    """The submitter of a command's output."""
    return RetryingSubmitter(ExecOptions(command=["true"]), Metrics(), core, stopping, structlog.get_logger())  # type: ignore[arg-type]


async def store_all(one: RetryingSubmitter, payloads: Sequence[bytes]) -> None:
    """Each as it comes, without waiting for the one before."""
    async with asyncio.TaskGroup() as group:
        for payload in payloads:
            group.create_task(one.store(payload, 1))


PAYLOADS = [f"{number}\n".encode() for number in range(6)]


@pytest.mark.parametrize("refusals", [1, 2, 5])
async def test_what_came_behind_a_refused_chunk_waits_for_it(refusals: int) -> None:
    core = Core(*[REFUSED] * refusals)
    await store_all(submitter(core, asyncio.Event()), PAYLOADS)
    assert core.stored == PAYLOADS


async def test_what_is_not_refused_does_not_wait_for_what_came_before() -> None:
    core = Core()
    await store_all(submitter(core, asyncio.Event()), PAYLOADS)
    assert core.most == len(PAYLOADS)


async def test_a_chunk_of_unknown_outcome_holds_nothing_up() -> None:
    core = Core(UnknownOutcomeError("it may be stored"))
    await store_all(submitter(core, asyncio.Event()), PAYLOADS)
    assert core.stored == PAYLOADS[1:]


async def test_a_stop_loses_what_waits_and_ends() -> None:
    core, stopping = Core(*[REFUSED] * 99), asyncio.Event()
    one = submitter(core, stopping)
    asyncio.get_running_loop().call_later(0.05, stopping.set)
    async with asyncio.timeout(60):
        await store_all(one, PAYLOADS)
    assert (one.lost, core.stored) == (len(PAYLOADS), [])


class NothingKept(Core):
    """Refuses dead letters too."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        self.asked.set()
        raise REFUSED


async def test_bad_lines_take_room_until_they_are_kept() -> None:
    core, stopping = NothingKept(), asyncio.Event()
    block = b"nonsense\n" * 2_000
    parser = make_parser("ndjson", core.domain, precision="ns", device_tag="")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        buffer = Buffer(2**20, group)
        source = Gatherer(buffer, parser, submitter(core, stopping), _nothing, _nothing, _nothing)
        buffer.join(source)
        source.add(block, "a sender")
        source.flush()
        await core.asked.wait()
        assert source.held == buffer.held >= len(block)
        source.dead_letter("too_long", [Letter(b"x" * 5_000, "a sender", "too long")])
        assert source.held >= len(block) + 5_000
        stopping.set()
    assert source.held == buffer.held == 0


LIMIT = 1000
ONE_AFTER_THE_OTHER = [step for number in range(4) for step in (("join", 0), ("read", number))]
STEPS = st.lists(st.tuples(st.sampled_from(["join", "read", "store", "leave"]), st.integers(0, 9)))


@given(STEPS)
@example(ONE_AFTER_THE_OTHER)
def test_all_sources_together_hold_no_more_than_the_buffer(steps: list[tuple[str, int]]) -> None:
    buffer = Buffer(LIMIT, asyncio.TaskGroup(), share=400)
    sources: list[GatheredSource] = []
    for what, number in steps:
        if what == "join":
            sources.append(GatheredSource(buffer, _nothing, _nothing))
            buffer.join(sources[-1])
        elif sources:
            one = sources[number % len(sources)]
            if what == "read" and not one.paused:
                one.hold(one.room)
            elif what == "store":
                one.hold(-one.held)
            elif what == "leave":
                one.hold(-one.held)
                buffer.leave(one)
                sources.remove(one)
        assert 0 <= sum(source.held for source in sources) == buffer.held <= LIMIT
        if buffer.held == 0:
            assert not any(source.paused for source in sources), "who may read on reads on"


def _nothing() -> None:
    """Reading stops and goes on."""
