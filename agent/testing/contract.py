"""Provides the contract suite of inputs, run with `petiole run` and a real nats-server.

A package's test derives it:

    class TestContract(InputContract):
        @pytest.fixture
        def case(self) -> InputCase:
            return InputCase("records", …)

A fixture `cases` instead has several inputs of one agent, each with its own class.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
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
from agent.testing.input_case import InputCase
from agent.testing.input_probe import InputProbe
from agent.testing.stored_stream import widen_stream

_CLASS: Final = "[[class]]\n"
_HEADER: Final = "[[input]]\n"
_EARLY: Final = 'ack = "accepted"\n'
_ROUND: Final = 110
"""Readings in flight during an event."""
_FILLING: Final = 150
_NOISES: Final = 6
_WHOLE: Final = 64 * 2**20
_SMALL: Final = 16 * 2**10
_RELOAD: Final = signal.SIGHUP


def leaf_of(directory: Path, *cases: InputCase) -> AgentProcess:
    """Return a leaf with these inputs, without hub."""
    member = plan.member(directory, "edge-1")
    return AgentProcess(member, _toml(member, cases))


def _toml(
    member: plan.Member,
    cases: Sequence[InputCase],
    stream_bytes: int = _WHOLE,
    early: Sequence[InputCase] = (),
) -> str:
    """Return a leaf's configuration; `early` inputs acknowledge before storing."""
    head = plan.leaf_toml(member, free_port()).partition(_CLASS)[0]
    classes = _classes(cases)
    streams = [f'{_CLASS}name = "{cls}"\nmax_bytes = {stream_bytes}\n' for cls in classes.values()]
    inputs = [
        f'{_HEADER}class = "{classes[case.name]}"\n{_EARLY if case in early else ""}{case.toml(member)}'
        for case in cases
    ]
    return f'{head}{"".join(streams)}[publish]\nlinger = "10ms"\n{"".join(inputs)}'


def _classes(cases: Sequence[InputCase]) -> dict[str, str]:
    """Return the class per input, distinct for several."""
    if len(cases) == 1:
        return {cases[0].name: DEFAULT_CLASS}
    return {case.name: f"input{number}" for number, case in enumerate(cases, 1)}


def _judge_losses(inputs: Sequence[InputProbe]) -> None:
    if losses := list(filter(None, [input_.losses() for input_ in inputs])):
        pytest.xfail("; ".join(losses))


class InputContract:
    """The suite. A subclass named `Test…` has a fixture `case`."""

    @pytest.fixture
    def cases(self, request: pytest.FixtureRequest) -> Sequence[InputCase]:
        """The inputs of an agent."""
        return [request.getfixturevalue("case")]

    @pytest.fixture
    def leaf(self, tmp_path: Path, cases: Sequence[InputCase]) -> Iterator[AgentProcess]:
        """A leaf with the inputs, not yet running."""
        find_binary()  # raises with the remedy: without a server every test would wait for it
        agent = leaf_of(tmp_path, *cases)
        with ExitStack() as beside:
            for case in cases:
                beside.enter_context(case.beside(agent.member))
            yield agent
            agent.close()

    @pytest.fixture
    def inputs(self, leaf: AgentProcess, cases: Sequence[InputCase]) -> list[InputProbe]:
        return [
            InputProbe(leaf, case, cls) for case, cls in zip(cases, _classes(cases).values(), strict=True)
        ]

    def test_an_input_that_is_killed_stopped_and_reloaded_while_busy_loses_and_doubles_nothing(
        self, leaf: AgentProcess, inputs: list[InputProbe]
    ) -> None:
        config = leaf.member.config.read_text()
        leaf.start()
        for number in (signal.SIGTERM, _RELOAD, signal.SIGKILL):
            before = [input_.stored() for input_ in inputs]
            offering = [input_.offering(_ROUND) for input_ in inputs]
            for input_, stored in zip(inputs, before, strict=True):
                input_.wait_stored(stored)
            if number is _RELOAD:
                leaf.reload(config.replace(_HEADER, f'{_HEADER}linger = "20ms"\n'))
            else:
                self._end(leaf, number, inputs)
                leaf.start()
            for thread in offering:
                thread.join()
        for input_ in inputs:
            input_.offer(1)  # all before may have been stored before the kill
            input_.wait_stored()
        _judge_losses(inputs)

    def _end(self, leaf: AgentProcess, number: signal.Signals, inputs: list[InputProbe]) -> None:
        ended = leaf.end(number)
        if number is signal.SIGKILL:
            assert ended == -number
            return
        assert ended == 0, f"the agent ended with {ended}"
        acked = json.loads((leaf.member.state / "state.json").read_bytes())["acked"]
        for input_ in inputs:
            assert acked[input_.cls]["closed"] is True, (
                f"{input_.case.name}: what was under way is not settled"
            )

    def test_what_an_input_cannot_take_is_counted_and_the_next_reading_is_stored(
        self, leaf: AgentProcess, inputs: list[InputProbe]
    ) -> None:
        leaf.start()
        for input_ in inputs:
            self._refuses_bad(input_)
        assert leaf.metric("petiole_unaccounted_readings") == 0

    def _refuses_bad(self, input_: InputProbe) -> None:
        for payload, reason in input_.case.bad:
            input_.refuse(payload, reason)
            input_.offer(1)
        if input_.case.bad:
            input_.has_each_once()
            input_.wait(lambda: input_.accepted() == input_.sent, "nothing else is accepted")
        else:
            input_.offer(1)
        input_.wait_stored()
        assert input_.metric("petiole_input_up") == 1
        already = input_.stored()  # looked at first, for an input may go on meanwhile
        assert input_.metric("petiole_accepted_readings_total") >= already

    def test_an_input_that_acknowledges_early_loses_nothing_by_a_stop_and_a_pull_input_may_not(
        self, leaf: AgentProcess, inputs: list[InputProbe], cases: Sequence[InputCase]
    ) -> None:
        early = []
        for at, input_ in enumerate(inputs, 1):
            leaf.member.config.write_text(_toml(leaf.member, cases, early=[input_.case]))
            try:
                read(leaf.member.config)
            except ConfigError as error:
                (problem,) = error.problems
                assert problem.startswith(f'input[{at}].ack: "accepted" would lose'), problem
            else:
                early.append(input_)
        leaf.member.config.write_text(_toml(leaf.member, cases, early=[input_.case for input_ in early]))
        sent = [input_ for input_ in early if input_.case.offer is not None]
        if not sent:
            return
        leaf.start()
        for input_ in sent:
            input_.offer(50)
            if not input_.case.acknowledges:
                input_.wait_stored(49)
        assert leaf.metric("petiole_unaccounted_readings") == 0
        assert leaf.end(signal.SIGTERM) == 0
        leaf.start()  # for inputs whose source keeps what was not taken
        for input_ in sent:
            input_.has_each_once()

    def test_a_full_stream_holds_an_input_up_and_more_room_lets_it_go_on(
        self, leaf: AgentProcess, inputs: list[InputProbe], cases: Sequence[InputCase]
    ) -> None:
        leaf.member.config.write_text(_toml(leaf.member, cases, _SMALL))
        leaf.start()
        offering = [input_.offering(_FILLING) for input_ in inputs if input_.case.fill is None]
        filled = [(input_, fill) for input_ in inputs if (fill := input_.case.fill) is not None]
        for _, fill in filled:
            for number in range(_NOISES):
                fill(leaf, random.Random(number).randbytes(5000).hex())
        for input_ in inputs:
            input_.wait(input_.is_refused, "the stream is full")
        wait_for(lambda: leaf.metric("petiole_in_flight_bytes") == 0, "what is refused takes no memory")
        assert leaf.status_of("/healthz") == 200
        offering += [input_.offering(_FILLING // 3) for input_, _ in filled]
        assert leaf.end(signal.SIGTERM) == 0, "a stop does not wait for room"
        leaf.start()
        for input_ in inputs:
            self._widens(input_)
        for thread in offering:
            thread.join()
        for input_ in inputs:
            input_.offer(1)  # behind what was refused
            input_.wait_stored()
        _judge_losses(inputs)

    def _widens(self, input_: InputProbe) -> None:
        if input_.case.acknowledges:
            input_.wait(
                lambda: input_.is_refused() or not input_.missing(),
                "it is still full, or has room for numbers",
            )
        widen_stream(input_.leaf.member, _WHOLE, input_.cls)
