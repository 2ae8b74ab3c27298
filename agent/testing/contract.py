"""What holds for every input, tried with `petiole run` in a process of its own and a real nats-server.

A test of a package derives the suite, and pytest runs it:

    class TestContract(InputContract):
        @pytest.fixture
        def case(self) -> InputCase:
            return InputCase("records", …)
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.base.nats_server import find_binary
from agent.cli.configuration import read
from agent.config import ConfigError
from agent.contract import DEFAULT_CLASS
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.testing.agent_process import AgentProcess, wait_for
from agent.testing.input_case import InputCase, Verdict, judge
from agent.testing.stored_stream import stored_readings, widen_stream

WHOLE_STREAM: Final = 'max_bytes = "512MiB"'
SMALL_STREAM: Final = 'max_bytes = "16KiB"'
_HEADER: Final = "[[input]]\n"
_ROUND: Final = 110
"""Readings that are under way when something happens."""
_FILLING: Final = 150
_NOISES: Final = 6
_ROOM: Final = 512 * 2**20
_RELOAD: Final = signal.SIGHUP


def leaf_of(directory: Path, case: InputCase) -> AgentProcess:
    """A leaf with one input, whose hub does not run."""
    member = plan.member(directory, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition(_HEADER)[0]
    return AgentProcess(member, f'{base}[publish]\nlinger = "10ms"\n{_HEADER}{case.toml(member)}')


def numbers_in(leaf: AgentProcess) -> Counter[float]:
    """How often each number that was handed in is stored; where an input has nothing but text, as text that
    begins with a digit."""
    values = [str(row["value"]) for row in stored_readings(leaf.member) if row["metric"] == "n"]
    return Counter(float(text) for text in values if text[:1].isdigit())


def _stored(leaf: AgentProcess, case: InputCase) -> float:
    return leaf.metric("petiole_stored_readings_total", input=case.name)


def _offered(leaf: AgentProcess, case: InputCase, numbers: range) -> threading.Thread:
    """Hands readings in while the test goes on; join it."""
    offer = case.offer or (lambda _leaf, _numbers: None)
    offering = threading.Thread(target=offer, args=(leaf, numbers))
    offering.start()
    return offering


def _each_is_there_once(leaf: AgentProcess, case: InputCase, count: int) -> None:
    """So many readings were handed in, and an agent that was not killed has them all."""
    if case.offer is None:
        rows = stored_readings(leaf.member)
        seen = Counter((row["ts"], row["metric"], str(row.get("tags"))) for row in rows)
        assert seen, "nothing is stored"
        assert set(seen.values()) == {1}, f"doubled: {[row for row, times in seen.items() if times > 1]}"
        return
    wait_for(lambda: not judge(numbers_in(leaf), count).lost, f"all {count} readings are stored")
    assert judge(numbers_in(leaf), count) == Verdict([], [], [])


def _judge_losses(leaf: AgentProcess, case: InputCase, count: int) -> None:
    """The same after an agent was ended while it was busy: a protocol that does not acknowledge may have lost
    readings by that, which are shown."""
    if case.acknowledges or case.offer is None:
        _each_is_there_once(leaf, case, count)
        return
    wait_for(lambda: count - 1 in numbers_in(leaf), "the reading that was sent last is stored")
    verdict = judge(numbers_in(leaf), count)
    assert (verdict.doubled, verdict.strange) == ([], []), verdict
    if verdict.lost:
        pytest.xfail(f"{case.name} does not acknowledge: {len(verdict.lost)} of {count} readings are lost")


class InputContract:
    """The suite. A subclass has a fixture `case`; its name begins with `Test`."""

    @pytest.fixture
    def leaf(self, tmp_path: Path, case: InputCase) -> Iterator[AgentProcess]:
        """A leaf with the input of the case, which does not run yet."""
        find_binary()  # raises with the remedy: without a server every test would wait for it
        agent = leaf_of(tmp_path, case)
        with case.beside(agent.member):
            yield agent
            agent.close()

    def test_an_input_that_is_killed_stopped_and_reloaded_while_busy_loses_and_doubles_nothing(
        self, leaf: AgentProcess, case: InputCase
    ) -> None:
        count = 0
        config = leaf.member.config.read_text()
        leaf.start()
        for number in (signal.SIGKILL, signal.SIGTERM, _RELOAD, signal.SIGKILL):
            before = _stored(leaf, case)
            offering = _offered(leaf, case, range(count, count + _ROUND))
            wait_for(lambda before=before: _stored(leaf, case) > before, "it is busy")  # type: ignore[misc]
            if number is _RELOAD:
                leaf.reload(config.replace(_HEADER, f'{_HEADER}linger = "20ms"\n'))
            else:
                self._end(leaf, number)
                leaf.start()
            offering.join()
            count += _ROUND
        if case.offer is not None:
            # All before may have been stored before the last kill.
            case.offer(leaf, range(count, count + 1))
            count += 1
        wait_for(lambda: _stored(leaf, case) > 0, "it goes on after the last start")
        _judge_losses(leaf, case, count)

    def _end(self, leaf: AgentProcess, number: signal.Signals) -> None:
        ended = leaf.end(number)
        if number is signal.SIGKILL:
            assert ended == -number
            return
        assert ended == 0, f"the agent ended with {ended}"
        state = json.loads((leaf.member.state / "state.json").read_bytes())
        assert state["acked"][DEFAULT_CLASS]["closed"] is True, "what was under way is not settled"

    def test_what_an_input_cannot_take_is_counted_and_the_next_reading_is_stored(
        self, leaf: AgentProcess, case: InputCase
    ) -> None:
        leaf.start()
        for count, (bad, reason) in enumerate(case.bad):
            assert case.send is not None, "a case with bad has a send"
            assert case.offer is not None, "a case with bad has an offer"
            before = leaf.metric("petiole_invalid_requests_total", input=case.name, reason=reason)
            case.send(leaf, bad)
            wait_for(
                lambda before=before, reason=reason: (  # type: ignore[misc]
                    leaf.metric("petiole_invalid_requests_total", input=case.name, reason=reason) > before
                ),
                f"it is counted as {reason}",
            )
            case.offer(leaf, range(count, count + 1))
        if case.bad:
            _each_is_there_once(leaf, case, len(case.bad))
            wait_for(lambda: self._accepted(leaf, case) == len(case.bad), "nothing else is accepted")
        elif case.offer is not None:
            case.offer(leaf, range(1))
        wait_for(lambda: _stored(leaf, case) > 0, "something is stored")
        assert leaf.metric("petiole_input_up", input=case.name) == 1
        already = _stored(leaf, case)  # looked at first, for an input may go on meanwhile
        assert leaf.metric("petiole_accepted_readings_total", input=case.name) >= already
        assert leaf.metric("petiole_unaccounted_readings") == 0

    def _accepted(self, leaf: AgentProcess, case: InputCase) -> float:
        """The accepted readings, without those that the input adds."""
        added = sum(row["metric"] in case.adds for row in stored_readings(leaf.member)) if case.adds else 0
        dead = leaf.metric("petiole_dead_readings_total", input=case.name)
        return leaf.metric("petiole_accepted_readings_total", input=case.name) - dead - added

    def test_an_input_that_acknowledges_early_loses_nothing_by_a_stop_and_a_pull_input_may_not(
        self, leaf: AgentProcess, case: InputCase
    ) -> None:
        config = leaf.member.config.read_text()
        leaf.member.config.write_text(config.replace(_HEADER, f'{_HEADER}ack = "accepted"\n'))
        try:
            read(leaf.member.config)
        except ConfigError as error:
            (problem,) = error.problems
            assert problem.startswith('input[1].ack: "accepted" would lose'), problem
            return
        if case.offer is None:
            return
        leaf.start()
        case.offer(leaf, range(50))
        if not case.acknowledges:
            wait_for(lambda: _stored(leaf, case) == 50, "what was sent is read")
        assert leaf.metric("petiole_unaccounted_readings") == 0
        assert leaf.end(signal.SIGTERM) == 0
        leaf.start()  # for inputs whose source keeps what was not taken
        _each_is_there_once(leaf, case, 50)

    def test_a_full_stream_holds_an_input_up_and_more_room_lets_it_go_on(
        self, leaf: AgentProcess, case: InputCase
    ) -> None:
        config = leaf.member.config.read_text()
        leaf.member.config.write_text(config.replace(WHOLE_STREAM, SMALL_STREAM))
        leaf.start()
        first = [_offered(leaf, case, range(_FILLING))] if case.fill is None else []
        if case.fill is not None:
            for number in range(_NOISES):
                case.fill(leaf, random.Random(number).randbytes(5000).hex())
        refusals, refused = "petiole_refused_readings_total", {"input": case.name, "reason": "stream_full"}
        wait_for(lambda: leaf.metric(refusals, **refused) > 0, "the stream is full")
        wait_for(lambda: leaf.metric("petiole_in_flight_bytes") == 0, "what is refused takes no memory")
        assert leaf.status_of("/healthz") == 200
        count = _FILLING if first else _FILLING // 3
        offering = first or [_offered(leaf, case, range(count))]
        assert leaf.end(signal.SIGTERM) == 0, "a stop does not wait for room"
        leaf.start()
        if case.acknowledges:
            wait_for(
                lambda: leaf.metric(refusals, **refused) > 0 or not judge(numbers_in(leaf), count).lost,
                "it is still full, or has room for numbers",
            )
        widen_stream(leaf.member, _ROOM)
        for thread in offering:
            thread.join()
        if case.offer is not None:
            case.offer(leaf, range(count, count + 1))  # behind what was refused
        wait_for(lambda: _stored(leaf, case) > 0, "it goes on")
        _judge_losses(leaf, case, count + 1)
