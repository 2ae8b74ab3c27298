"""What holds for every input, tried with `petiole run` in a process of its own and an embedded server."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.configuration import read
from agent.config import ConfigError
from agent.demo import plan
from agent.demo.ports import free_port
from tests.harness.agent_process import Agent
from tests.harness.agents import CLASS, StreamProbe, ask_stream
from tests.harness.input_contract import INPUTS, Entry, lines
from tests.harness.wait import wait_for

WHOLE_STREAM = 'max_bytes = "512MiB"'
SMALL_STREAM = 'max_bytes = "16KiB"'


def leaf_of(directory: Path, entry: Entry) -> Agent:
    """A leaf with one input, whose hub does not run."""
    member = plan.member(directory, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    assert WHOLE_STREAM in base
    return Agent(member, f'{base}[publish]\nlinger = "10ms"\n[[input]]\n{entry.toml(member)}')


@pytest.fixture(params=list(INPUTS.values()), ids=list(INPUTS))
def entry(request: pytest.FixtureRequest) -> Entry:
    """Each input in turn."""
    found: Entry = request.param
    return found


@pytest.fixture
def leaf(tmp_path: Path, entry: Entry) -> Iterator[Agent]:
    """A leaf with that input."""
    agent = leaf_of(tmp_path, entry)
    with entry.beside(agent.member):
        yield agent
        agent.close()


def readings(leaf: Agent) -> list[dict[str, Any]]:
    """All readings that the leaf's stream holds, in order."""

    async def read(probe: StreamProbe) -> list[dict[str, Any]]:
        return [row for rows in await probe.rows(CLASS) for row in rows]

    return ask_stream(leaf.member, read)


def numbers_in(leaf: Agent) -> Counter[float]:
    """By the metric `n`; where an input has nothing but text, by text that is a number."""
    values = [str(row["value"]) for row in readings(leaf) if row["metric"] == "n"]
    return Counter(float(text) for text in values if text[:1].isdigit())


def stored(leaf: Agent, entry: Entry) -> float:
    return leaf.metric("petiole_stored_readings_total", input=entry.name)


def offered_and_accepted(leaf: Agent, entry: Entry) -> float:
    """The accepted readings, without those that the input adds."""
    added = sum(row["metric"] in entry.adds for row in readings(leaf)) if entry.adds else 0
    dead = leaf.metric("petiole_dead_readings_total", input=entry.name)
    return leaf.metric("petiole_accepted_readings_total", input=entry.name) - dead - added


def offered(leaf: Agent, entry: Entry, numbers: range) -> threading.Thread:
    """Hands readings in while the test goes on; join it."""
    offer = entry.offer or (lambda _leaf, _numbers: None)
    offering = threading.Thread(target=offer, args=(leaf, numbers))
    offering.start()
    return offering


def each_reading_is_there_once(leaf: Agent, entry: Entry, count: int) -> None:
    if entry.offer is None:
        told = Counter((row["ts"], row["metric"], str(row.get("tags"))) for row in readings(leaf))
        assert told
        assert set(told.values()) == {1}
        return
    wait_for(lambda: len(numbers_in(leaf)) == count, f"all {count} readings are stored")
    assert numbers_in(leaf) == Counter(range(count)), "lost or doubled"


def test_an_input_that_is_killed_and_stopped_while_busy_loses_and_doubles_nothing(
    leaf: Agent, entry: Entry
) -> None:
    count = 0
    leaf.start()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        before = stored(leaf, entry)
        offering = offered(leaf, entry, range(count, count + 150))
        wait_for(lambda before=before: stored(leaf, entry) > before, "it is busy")  # type: ignore[misc]
        ended = leaf.end(number)
        assert ended == (-number if number is signal.SIGKILL else 0)
        if number is not signal.SIGKILL:
            state = json.loads((leaf.member.state / "state.json").read_bytes())
            assert state["acked"][CLASS]["closed"] is True, "what was under way is settled before the end"
        leaf.start()
        offering.join()
        count += 150
    if entry.offer is not None:
        entry.offer(leaf, range(count, count + 1))  # all before may have been stored before the last kill
        count += 1
    wait_for(lambda: stored(leaf, entry) > 0, "it goes on after the last start")
    each_reading_is_there_once(leaf, entry, count)


def test_what_an_input_cannot_take_is_counted_and_the_next_reading_is_stored(
    leaf: Agent, entry: Entry
) -> None:
    leaf.start()
    if entry.try_once is not None and entry.offer is not None:
        for count, (bad, reason) in enumerate(entry.bad):
            before = leaf.metric("petiole_invalid_requests_total", input=entry.name, reason=reason)
            entry.try_once(leaf, bad)
            wait_for(
                lambda before=before, reason=reason: (  # type: ignore[misc]
                    leaf.metric("petiole_invalid_requests_total", input=entry.name, reason=reason) > before
                ),
                f"it is counted as {reason}",
            )
            entry.offer(leaf, range(count, count + 1))
        each_reading_is_there_once(leaf, entry, len(entry.bad))
        wait_for(lambda: offered_and_accepted(leaf, entry) == len(entry.bad), "nothing else is accepted")
    wait_for(lambda: stored(leaf, entry) > 0, "something is stored")
    assert leaf.metric("petiole_input_up", input=entry.name) == 1
    already = stored(leaf, entry)  # looked at first, for an input may go on meanwhile
    assert leaf.metric("petiole_accepted_readings_total", input=entry.name) >= already
    assert leaf.metric("petiole_unaccounted_readings") == 0


def test_an_input_that_acknowledges_early_loses_nothing_by_a_stop_and_a_pull_input_may_not(
    leaf: Agent, entry: Entry
) -> None:
    config = leaf.member.config.read_text()
    leaf.member.config.write_text(config.replace("[[input]]\n", '[[input]]\nack = "accepted"\n'))
    try:
        read(leaf.member.config)
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.startswith('input[1].ack: "accepted" would lose')
        return
    if entry.offer is None:
        return
    leaf.start()
    entry.offer(leaf, range(50))
    assert leaf.metric("petiole_unaccounted_readings") == 0
    assert leaf.end(signal.SIGTERM) == 0
    leaf.start()  # for inputs whose source keeps what was not taken
    each_reading_is_there_once(leaf, entry, 50)


def test_a_full_stream_holds_an_input_up_and_more_room_lets_it_go_on(leaf: Agent, entry: Entry) -> None:
    config = leaf.member.config.read_text()
    leaf.member.config.write_text(config.replace(WHOLE_STREAM, SMALL_STREAM))
    leaf.start()
    if entry.try_once is not None:
        for number in range(6):
            noise = lines([number], random.Random(number).randbytes(5000).hex())
            entry.try_once(leaf, noise.replace(b'"metric": "n"', b'"metric": "noise"'))
    refused = ("petiole_refused_readings_total", {"input": entry.name, "reason": "stream_full"})
    wait_for(lambda: leaf.metric(refused[0], **refused[1]) > 0, "the stream is full")
    wait_for(lambda: leaf.metric("petiole_in_flight_bytes") == 0, "what is refused takes no memory")
    assert leaf.status_of("/healthz") == 200
    offering = offered(leaf, entry, range(50))
    assert leaf.end(signal.SIGTERM) == 0, "a stop does not wait for room"
    leaf.member.config.write_text(config)
    leaf.start()
    offering.join()
    wait_for(lambda: stored(leaf, entry) > 0, "it goes on")
    each_reading_is_there_once(leaf, entry, 50)
