"""Dialling a hub that a test plays: what is believed of what it says, and that every conversation ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from agent.cli.checks import leafnode_probe
from agent.cli.checks.leafnode_probe import Joined, dial
from agent.server import joining
from agent.server.joining import Dialled, LeafRefused, shown
from agent.server.permissions import Permissions

GREETING = {"version": "2.15.1", "server_name": "hub", "nonce": "x", "jetstream": True}
NEEDED = Permissions(("$JSC.R.*", "a.*"), ("$JSC.R.*", "b.>"))


def info(**more: object) -> bytes:
    return b"INFO " + json.dumps({**GREETING, **more}).encode() + b"\r\n"


def traced(server: str, subject: str, second: int) -> bytes:
    """What a server tells of a message that it would not deliver to anybody."""
    row = {
        "server": {"name": server},
        "events": [{"type": "in", "ts": f"2026-11-21T12:00:{second:02}.5Z", "subj": subject}],
    }
    body = json.dumps(row).encode()
    return b"LMSG $JSC.R.petiole-check %d\r\n%s\r\n" % (len(body), body)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what comes as long as a busy machine may need; a test of silence is less patient."""
    monkeypatch.setattr(joining, "_SECONDS", 15.0)
    monkeypatch.setattr(leafnode_probe, "_TRACES", 15.0)


@contextlib.asynccontextmanager
async def hub(*said: Sequence[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A hub that greets, says the first lines once it is connected to, and the next ones once something is
    published; then it is silent. With what it heard."""
    heard: list[bytes] = []

    ended = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(info())
            for verb, lines in zip((b"PING", b"HMSG"), said, strict=False):
                while line := await reader.readline():
                    heard.append(line)
                    if line.startswith(verb):
                        break
                writer.writelines(lines)
            heard.append(await reader.read())
        except ConnectionError:
            pass  # hung up on, as it should be
        finally:
            writer.transport.abort()
            ended.set()

    async with await asyncio.start_server(play, "127.0.0.1", 0) as server:
        yield f"nats-leaf://me:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
        await ended.wait()


async def dialled(url: str) -> Dialled:
    async with asyncio.timeout(30):
        return await dial(url, None, NEEDED)


async def test_the_hub_is_believed_and_not_the_servers_behind_it() -> None:
    traces = [traced("hub", "a.petiole-check", 1), traced("behind", "a.petiole-check", 2)]
    traces += [traced("hub", "$JSC.R.petiole-check", 3)]
    async with hub([info(connect_info=True), b"PONG\r\n"], traces) as (url, heard):
        probe = await dialled(url)
    assert isinstance(probe.outcome, Joined)
    assert {trace.server for trace in probe.outcome.traces.values()} == {"hub"}
    assert probe.outcome.traces.keys() == {"a.petiole-check", "$JSC.R.petiole-check"}
    sent = b"".join(heard)
    assert b"LS+ b.petiole-check\r\n" in sent
    assert sent.count(b"Nats-Trace-Only: true") == 2
    assert b"secret" not in shown(url).encode()


async def test_what_the_hub_does_not_grant_is_not_tried() -> None:
    granted = info(export={"allow": ["$JSC.R.*"]}, **{"import": {"allow": ["$JSC.R.*"]}})
    async with hub([granted, b"PONG\r\n"], [traced("hub", "$JSC.R.petiole-check", 1)]) as (url, heard):
        probe = await dialled(url)
    assert isinstance(probe.outcome, Joined)
    assert b"a.petiole-check" not in b"".join(heard)
    assert b"b.petiole-check" not in b"".join(heard)
    async with hub([info(export={"allow": ["a.*"]}), b"PONG\r\n"], []) as (url, heard):
        probe = await dialled(url)
    assert probe.outcome == Joined({**GREETING, "export": {"allow": ["a.*"]}})
    assert b"HMSG" not in b"".join(heard), "where nothing could be told nothing is tried"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b"-ERR 'Authorization Violation'\r\n"], "Authorization Violation"),
        ([b"INFO nonsense\r\n"], "ended the conversation"),
        ([b"x" * 2_000_000], "ended the conversation"),
        ([], "says nothing more"),
    ],
)
async def test_a_hub_that_does_not_let_in_is_told_as_that(
    said: list[bytes], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not said:
        monkeypatch.setattr(joining, "_SECONDS", 0.3)
    async with hub(said) as (url, _):
        probe = await dialled(url)
    assert isinstance(probe.outcome, LeafRefused)
    assert why in probe.outcome.why


async def test_a_hub_that_falls_silent_or_lies_about_sizes_ends_the_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joining = [info(), b"PONG\r\n"]
    with monkeypatch.context() as quick:
        quick.setattr(leafnode_probe, "_TRACES", 0.2)
        async with hub(joining, []) as (url, _):
            silent = await dialled(url)
    assert isinstance(silent.outcome, Joined)
    assert silent.outcome.traces == {}
    for line in (b"LMSG x 999999999\r\n", b"LMSG x -5\r\n", b"LMSG x y\r\n", b"LMSG\r\n"):
        async with hub(joining, [line]) as (url, _):
            assert isinstance((await dialled(url)).outcome, LeafRefused), line
