"""The input `modbus` with a real server that is not Python: what a slow or broken unit does to the others."""

from __future__ import annotations

import itertools
import json
import os
import pty
import select
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from agent.testing.agent_process import AgentProcess
from agent.testing.contract import leaf_of
from agent.testing.input_case import InputCase
from agent.testing.stored_stream import stored_readings
from tests.harness.input_contract import INPUTS
from tests.harness.plant_servers import ModbusServer, modbus_port
from tests.harness.wait import wait_for


class Follow(Protocol):
    def __call__(
        self, registers: list[dict[str, Any]], **options: str
    ) -> tuple[AgentProcess, ModbusServer]: ...


FAST = {"interval": "100ms", "timeout": "5s"}
"""A busy machine answers late, and an answer that is late is logged as another fault."""


def configured(url: str, registers: list[dict[str, Any]], **options: str) -> InputCase:
    tables = "".join(
        "[[input.registers]]\n"
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in register.items())
        for register in registers
    )
    given = "".join(
        f"{name} = {json.dumps(value)}\n" for name, value in {"url": url, **FAST, **options}.items()
    )
    return INPUTS["modbus"]._replace(toml=lambda _: f'type = "modbus"\n{given}{tables}')


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Starts a leaf that reads these registers of a server beside it."""
    opened: list[AgentProcess] = []

    def start(registers: list[dict[str, Any]], **options: str) -> tuple[AgentProcess, ModbusServer]:
        probe = leaf_of(tmp_path, INPUTS["modbus"])
        server = servers.setdefault(
            probe.member.directory, ModbusServer(modbus_port(probe.member), tmp_path / "m")
        )
        server.start()
        agent = leaf_of(tmp_path, configured(server.url, registers, **options))
        opened.append(agent)
        agent.start()
        return agent, server

    servers: dict[Path, ModbusServer] = {}
    yield start
    for agent in opened:
        agent.close()
    for server in servers.values():
        server.kill()


def values(agent: AgentProcess, metric: str) -> list[float]:
    return [row["value"] for row in stored_readings(agent.member) if row["metric"] == metric]


def count(agent: AgentProcess, reason: str) -> float:
    return agent.metric("petiole_invalid_requests_total", input="modbus", reason=reason)


def test_registers_of_all_tables_and_types_are_read_and_scaled(follow: Follow) -> None:
    agent, server = follow(
        [
            {"metric": "speed", "address": 100, "type": "float32"},
            {"metric": "swapped", "address": 102, "type": "float32", "word_order": "little"},
            {"metric": "total", "address": 104, "type": "uint64", "table": "input"},
            {
                "metric": "level",
                "address": 108,
                "type": "int16",
                "scale": 0.5,
                "offset": 1.0,
                "device": "tank",
            },
            {"metric": "on{address}", "address": 7, "count": 2, "table": "coil"},
        ]
    )
    server.set(100, 0x41AC, 0x0000, 0x0000, 0x41AC, 0, 0, 1, 2, 0xFFFE)
    wait_for(
        lambda: 21.5 in values(agent, "speed") and 21.5 in values(agent, "swapped"), "both orders are read"
    )
    wait_for(lambda: 65_538 in values(agent, "total"), "a number of 64 bits is read")
    wait_for(lambda: 0.0 in values(agent, "level"), "a scaled number is read")
    assert {row["device"] for row in stored_readings(agent.member) if row["metric"] == "level"} == {"tank"}
    assert set(values(agent, "on7")) == {True}
    assert set(values(agent, "on8")) == {False}


def test_a_unit_that_does_not_answer_holds_up_the_others_seldom_and_comes_back(follow: Follow) -> None:
    registers = [{"metric": "a", "address": 1}, {"metric": "b", "address": 2, "unit": 2}]
    agent, server = follow(registers, timeout="200ms")
    wait_for(lambda: bool(values(agent, "a") and values(agent, "b")), "both answer")
    wait_for(lambda: agent.metric("petiole_input_up", input="modbus") == 1, "none was late")
    server.treat(2, slow=1.0)
    wait_for(lambda: count(agent, "timeout") >= 2, "it is asked again")
    before = len(values(agent, "a"))
    wait_for(lambda: len(values(agent, "a")) > before + 10, "the other is read on")
    assert agent.metric("petiole_input_up", input="modbus") == 0
    server.treat(2)
    wait_for(lambda: agent.metric("petiole_input_up", input="modbus") == 1, "it answers again")


def test_what_a_unit_refuses_is_counted_and_the_others_are_read(follow: Follow) -> None:
    agent, server = follow([{"metric": "a", "address": 1}, {"metric": "b", "address": 2, "unit": 2}])
    server.treat(2, refuse=4)
    wait_for(lambda: count(agent, "exception") >= 3, "it is asked again each time")
    before = len(values(agent, "a"))
    wait_for(lambda: len(values(agent, "a")) > before, "the other is read on")
    assert "server device failure" in agent.log.read_text()


def test_what_a_unit_refuses_of_its_registers_is_logged_once_while_the_others_are_read(
    follow: Follow,
) -> None:
    agent, server = follow([{"metric": "a", "address": 1}, {"metric": "b", "address": 500}])
    server.forbid(500)
    wait_for(lambda: count(agent, "exception") >= 5, "it is asked again each time")
    assert agent.metric("petiole_input_up", input="modbus") == 0
    said = [line for line in agent.log.read_text().splitlines() if "unit 1 can" in line]
    assert len(said) == 1
    assert "illegal data address" in said[0]


def test_an_address_between_that_may_not_be_read_is_asked_around(follow: Follow) -> None:
    agent, server = follow([{"metric": "r{address}", "address": at} for at in (20, 25)])
    wait_for(lambda: bool(values(agent, "r20") and values(agent, "r25")), "one request reads both")
    server.forbid(22)
    before = len(values(agent, "r25"))
    wait_for(lambda: len(values(agent, "r25")) > before + 2, "two requests read both")
    assert count(agent, "exception") == 0


def test_a_server_that_was_killed_is_read_again(follow: Follow) -> None:
    agent, server = follow([{"metric": "a", "address": 1}])
    wait_for(lambda: bool(values(agent, "a")), "it is read")
    server.kill()
    wait_for(lambda: count(agent, "unreachable") > 0, "its loss is counted")
    before = len(values(agent, "a"))
    server.start()
    wait_for(lambda: len(values(agent, "a")) > before, "it is read again")


@contextmanager
def null_modem() -> Iterator[tuple[str, str]]:
    """The names of two serial lines of which each says what the other hears."""
    with ExitStack() as stack:
        ends = [pty.openpty() for _ in range(2)]
        for end in itertools.chain(*ends):
            stack.callback(os.close, end)
            tty.setraw(end)
        (first, _), (second, _) = ends
        stop, stopped = os.pipe()
        stack.callback(os.close, stop)

        def carry() -> None:
            while stop not in (ready := select.select([first, second, stop], [], [])[0]):
                for end in ready:
                    os.write(second if end == first else first, os.read(end, 4096))

        carrier = threading.Thread(target=carry)
        carrier.start()
        try:
            yield os.ttyname(ends[0][1]), os.ttyname(ends[1][1])
        finally:
            os.close(stopped)
            carrier.join()


def test_units_on_a_serial_line_are_read(tmp_path: Path) -> None:
    with null_modem() as (theirs, ours):
        server = ModbusServer(Path(theirs), tmp_path / "m")
        server.start()
        registers = [{"metric": "a", "address": 40, "unit": 9}]
        agent = leaf_of(tmp_path, configured(f"rtu://{ours}", registers, parity="none", timeout="2s"))
        try:
            agent.start()
            wait_for(lambda: 40 in values(agent, "a"), "it is read")
            server.set(40, 41)
            wait_for(lambda: 41 in values(agent, "a"), "its change is read")
        finally:
            agent.close()
            server.kill()
