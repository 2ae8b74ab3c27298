"""What the sources of an input hold together stays within its buffer, in whatever order they come and go."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from agent.leaf.inputs.shared.gatherer import Buffer, GatheredSource

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
