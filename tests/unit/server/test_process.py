from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.base.listen_sockets import is_free
from agent.base.nats_server import ServerError, check_version, find_binary, version_of
from agent.server.child import Stranger, greeting, process_of


@pytest.mark.parametrize(
    ("said", "version"), [("nats-server: v2.15.1\n", "2.15.1"), ("nats-server: v2.16.0-beta.1", "2.16.0")]
)
def test_a_server_that_is_new_enough_is_taken(said: str, version: str) -> None:
    assert check_version(said, "it") == version


@pytest.mark.parametrize("said", ["nats-server: v2.15.0", "nats-server: v2.9.99", "v1.15.1"])
def test_an_older_server_is_refused_with_the_version_to_take(said: str) -> None:
    with pytest.raises(ServerError, match=r"take 2\.15\.1"):
        check_version(said, "it")


async def test_a_program_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="does not say that it is a nats-server"):
        await version_of(Path("/bin/true"))
    with pytest.raises(ServerError, match="cannot be run"):
        await version_of(tmp_path / "nothing")


def test_a_missing_server_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"petiole\[embedded\]"):
        find_binary()


async def test_nobody_and_strangers_are_told_from_a_server() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with server:
        assert await greeting(address) == Stranger()
        assert not is_free(address)
    assert await greeting(address) is None
    assert is_free(address)


async def test_a_silent_listener_is_a_stranger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert await greeting(silent.getsockname()) == Stranger()


@pytest.mark.parametrize(("more", "is_found"), [(False, True), (True, False)])
def test_a_process_is_found_by_its_whole_command_line(tmp_path: Path, more: bool, is_found: bool) -> None:
    configuration = Path(f"input('{tmp_path}')")
    assert process_of(configuration) is None
    command = [sys.executable, *["-c", str(configuration)] * (2 if more else 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            # It runs: for a moment after it is started its command line is empty.
            process.stdout.read(1)
            assert process_of(configuration) == (process.pid if is_found else None)
        finally:
            process.kill()
