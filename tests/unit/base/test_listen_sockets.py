"""Sockets that stay open while their listener restarts, and addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.base.listen_sockets import (
    LISTEN_SOCKETS,
    VARIABLE,
    ListenSockets,
    PortServer,
    host_and_port,
    near_host,
    obstacle,
    tcp,
)


def listen() -> tuple[socket.socket, str]:
    one = socket.create_server(("127.0.0.1", 0))
    return one, tcp(*one.getsockname())


@pytest.mark.parametrize(
    ("listen_host", "address"),
    [("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("edge-1", "edge-1:1"), ("::1", "[::1]:1")],
)
def test_a_server_on_every_address_is_near_on_the_loopback(listen_host: str, address: str) -> None:
    assert host_and_port(near_host(listen_host), 1) == address


def test_what_is_kept_takes_connections_while_nobody_listens() -> None:
    kept = ListenSockets()
    one, where = listen()
    with kept.listening(where, [one]):
        kept.keep([where, "tcp://127.0.0.1:1"])
    one.close()
    assert kept.is_free(where)
    waiting = socket.create_connection(one_address(where))
    (again,) = kept.take(where)
    taken, _ = again.accept()
    waiting.sendall(b"x")
    assert taken.recv(1) == b"x"
    assert not kept.is_free(where)
    for each in (waiting, taken, again):
        each.close()


def test_nothing_is_kept_that_nobody_wants() -> None:
    kept = ListenSockets()
    one, where = listen()
    with kept.listening(where, [one]):
        kept.keep([])
    one.close()
    assert kept.take(where) == []


def test_what_is_kept_and_not_taken_is_closed_and_its_path_removed(tmp_path: Path) -> None:
    kept = ListenSockets()
    path = tmp_path / "lines.sock"
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(path))
    one.listen()
    where = f"unix://{path}"
    with kept.listening(where, [one]):
        kept.keep([where])
    one.close()
    kept.close()
    assert not path.exists()
    assert not kept.is_free(where)


def test_a_program_that_takes_the_place_of_this_one_takes_over_its_sockets() -> None:
    kept = ListenSockets()
    one, where = listen()
    with kept.listening(where, [one]):
        kept.keep([where])
    one.close()
    environment: dict[str, str] = {}
    kept.pass_fds(environment)
    code = (
        "import os; from agent.base.listen_sockets import LISTEN_SOCKETS\n"
        f"LISTEN_SOCKETS.inherit_fds(os.environ); (one,) = LISTEN_SOCKETS.take({where!r})\n"
        f"assert {VARIABLE!r} not in os.environ and not os.get_inheritable(one.fileno())\n"
        "one.accept()[0].sendall(b'taken over')"
    )
    program = subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment, close_fds=False)
    with socket.create_connection(one_address(where), timeout=20) as client:
        assert client.recv(100) == b"taken over"
    assert program.wait(20) == 0
    kept.close()


def test_what_is_handed_on_is_believed_only_for_sockets_that_are_bound_there() -> None:
    one, where = listen()
    with open(os.devnull) as file:  # noqa: PTH123
        elsewhere = {"tcp://127.0.0.1:1": [one.fileno()], where: [file.fileno(), 10**6]}
        for text in (json.dumps(elsewhere), "[1]", "nonsense", '{"a": 1}', '{"a": ["b"]}'):
            kept = ListenSockets()
            kept.inherit_fds({VARIABLE: text})
            assert not kept.is_free(where)
            assert not kept.is_free("tcp://127.0.0.1:1")
    one.getsockname()  # still open
    one.close()


async def test_a_server_on_a_port_takes_over_what_another_left() -> None:
    first = PortServer("127.0.0.1", 0, asyncio.Protocol)
    port = await first.open()
    first.close()
    second = PortServer("127.0.0.1", port, asyncio.Protocol)
    assert await second.open() == port
    assert obstacle(("127.0.0.1", port)) is not None
    with LISTEN_SOCKETS.leaving([tcp("127.0.0.1", port)]):
        assert obstacle(("127.0.0.1", port)) is None, "who is about to end is not in the way"
    second.close()


def one_address(where: str) -> tuple[str, int]:
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Meanwhile this process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 2, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_listener_for_which_no_descriptor_is_left_says_so() -> None:
    server = PortServer("127.0.0.1", 0, asyncio.Protocol)
    with no_descriptor_left(), pytest.raises(OSError, match="too many open files"):
        await server.open()
