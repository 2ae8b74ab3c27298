"""What a supervisor is told, over a real socket, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.base.machine import notifier
from tests.harness.agent_process import Supervisor


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisor]:
    one = Supervisor(tmp_path if request.param == "path" else None)
    yield one
    one.close()


def test_the_supervisor_is_told_over_a_socket_with_and_without_a_path(supervisor: Supervisor) -> None:
    one = notifier({"NOTIFY_SOCKET": supervisor.address})
    assert one is not None
    one.ready()
    assert supervisor.next() == {"READY": "1"}
    before = time.monotonic_ns() // 1000
    one.reloading()
    told = supervisor.next()
    assert told["RELOADING"] == "1"
    assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    one.alive()
    assert supervisor.next() == {"WATCHDOG": "1"}
    one.stopping(70.5)
    told = supervisor.next()
    assert (told["STOPPING"], told["EXTEND_TIMEOUT_USEC"]) == ("1", "70500000")


def test_a_sentence_can_tell_the_supervisor_nothing_but_itself(supervisor: Supervisor) -> None:
    one = notifier({"NOTIFY_SOCKET": supervisor.address})
    assert one is not None
    one.status("the link is down:\nMAINPID=1\r\n" + "x" * 5000)
    told = supervisor.next()
    assert set(told) == {"STATUS"}
    assert told["STATUS"].startswith("the link is down: MAINPID=1 x")
    assert len(told["STATUS"]) == 400


@pytest.mark.parametrize("address", ["", "/", "@", "vsock:2:1234", "notify"])
def test_an_address_that_is_none_is_let_alone(address: str) -> None:
    assert notifier({"NOTIFY_SOCKET": address}) is None
    assert notifier({}) is None


def test_a_supervisor_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    one = notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert one is not None
    one.ready()


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_only_where_it_was_asked_of_this_process(
    asked: dict[str, str], seconds: float | None
) -> None:
    one = notifier({"NOTIFY_SOCKET": "@petiole", **asked})
    assert one is not None
    assert one.watchdog == seconds
