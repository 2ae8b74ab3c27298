"""Dials the hub as this leaf does, in the leafnode protocol of nats-server, and hangs up again.

The hub's server greets with its version and domain, says whether it knows the leaf's key, and then sends what
the leaf may publish and subscribe. Each of these permissions is tried with a traced message or a subscription
to an unused subject. So nothing changes, and the leaf's own link is not touched. The hub's registrar knows
such a connection by its name (`CHECK_SERVER`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import nkeys

from agent.base.files import is_there, open_regular
from agent.base.nats_server import MINIMUM, parse_version
from agent.base.wait import timeout
from agent.cli.checks.handshake import LINE, Greeted, Nowhere, Tls, greet, reading
from agent.cli.checks.permissions import is_granted, sample
from agent.cli.checks.streams import Trace, parse_trace, trace_headers
from agent.contract import CHECK_SERVER
from agent.server.permissions import Permissions

SILENCE: Final = "it lets connect and says nothing more"
TOO_OLD: Final = "it is too old to be asked more"
CLIENT_PORT: Final = "it is a server's port for clients"
_SECONDS: Final = 2.0
_TRACES: Final = 1.5
_PORT: Final = 7422
_ANSWERS: Final = "$JSC.R.*"
"""Where both sides may publish and subscribe; servers answer each other there, under names of their own."""
_WEBSOCKET: Final = ("ws", "wss")


@dataclass(frozen=True, slots=True)
class Joined:
    """The hub let the leaf in."""

    info: Mapping[str, Any]
    """Its INFO after the connect."""
    refused: tuple[str, ...] = ()
    """Its errors about subjects."""
    traces: Mapping[str, Trace] = field(default_factory=dict)
    """Its traces, by subject."""
    asked: float = 0.0
    answered: float = 0.0
    """Epoch seconds by this machine's clock."""


@dataclass(frozen=True, slots=True)
class LeafRefused:
    """The hub did not let the leaf in, for this reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Dialled:
    """One address of the hub, dialled."""

    url: str
    greeting: Greeted | Nowhere
    outcome: Joined | LeafRefused | None = None
    """None if joining was not tried."""


def shown(url: str) -> str:
    """An address without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def dial(url: str, seed: Path | None, needed: Permissions, tls: Tls | None = None) -> Dialled:
    """Dial one address of the hub, with the key of `seed` or what stands in the address, and try what it
    grants of what is needed. `tls` is what the leaf's own server dials with, None without. Ends within ten
    seconds."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or _PORT)
    if parts.scheme in _WEBSOCKET:
        return Dialled(url, Nowhere("a websocket is not looked into", unknown=True))
    greeting = await greet(address, tls or (Tls(reading()) if parts.scheme == "tls" else None))
    if isinstance(greeting, Nowhere):
        return Dialled(url, greeting)
    if "client_ip" in greeting.info:  # which a server tells its clients, and no leaf
        greeting.close()
        return Dialled(url, greeting, LeafRefused(CLIENT_PORT))
    if (version := parse_version(str(greeting.info["version"]))) is None or version < MINIMUM:
        # Before 2.11 a server delivers what is only to be traced; in some versions after that every leaf that
        # comes restarts all sources (nats-server #7796).
        greeting.close()
        return Dialled(url, greeting, LeafRefused(TOO_OLD))
    try:
        credentials = _credentials(parts, seed, greeting.info)
        if credentials is None:
            return Dialled(url, greeting)
        async with timeout(2 * _SECONDS):
            outcome = await _join(greeting, credentials, needed)
    except TimeoutError:
        outcome = LeafRefused(SILENCE)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        outcome = LeafRefused(f"it ended the conversation ({error})")
    finally:
        greeting.close()
    return Dialled(url, greeting, outcome)


def _credentials(parts: SplitResult, seed: Path | None, info: Mapping[str, Any]) -> dict[str, Any] | None:
    if parts.username:
        return {"user": parts.username, "pass": parts.password or ""}
    if seed is None or not is_there(seed):
        return None if info.get("auth_required") else {}
    try:
        with open_regular(seed) as file:
            pair = nkeys.from_seed(file.read().strip())
        signed = pair.sign(str(info.get("nonce", "")).encode())
    except nkeys.NkeysError:
        raise ValueError("the seed cannot be used") from None
    return {
        "nkey": bytes(pair.public_key).decode(),
        "sig": base64.urlsafe_b64encode(signed).rstrip(b"=").decode(),
    }


async def _join(
    greeting: Greeted, credentials: Mapping[str, Any], needed: Permissions
) -> Joined | LeafRefused:
    reader, writer = greeting.reader, greeting.writer
    hello = {
        "name": f"{CHECK_SERVER}.{secrets.token_hex(4)}",  # the hub ends a link of the same name
        "version": greeting.info.get("version"),
        "headers": True,
        "protocol": 1,
        **credentials,
    }
    writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
    info: dict[str, Any] = {}
    async with timeout(_SECONDS):
        while not (line := await reader.readline()).startswith(b"PONG"):
            if line.startswith(b"INFO"):
                info = json.loads(line[4:])
            elif line.startswith(b"-ERR"):
                return LeafRefused(_error_text(line))
            elif not line:
                return LeafRefused("it hung up")
            elif line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
    publish = [sample(subject) for subject in needed.publish if is_granted(info, "publish", subject)]
    subscribe = [sample(subject) for subject in needed.subscribe if is_granted(info, "subscribe", subject)]
    if sample(_ANSWERS) not in publish or sample(_ANSWERS) not in subscribe:
        return Joined(info)  # without this subject no server can answer
    asked_at = time.time()
    hub = str(greeting.info.get("server_name"))
    refused, traces = await _try(reader, writer, hub, publish, subscribe, sample(_ANSWERS))
    return Joined(info, tuple(refused), traces, asked_at, time.time())


async def _try(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hub: str,
    publish: Collection[str],
    subscribe: Collection[str],
    reply: str,
) -> tuple[list[str], dict[str, Trace]]:
    """The errors, and the traces of the server `hub`."""
    for subject in subscribe:
        writer.write(f"LS+ {subject}\r\n".encode())
    named = "".join(f"{name}: {value}\r\n" for name, value in trace_headers(reply).items())
    head = f"NATS/1.0\r\n{named}\r\n"
    for subject in publish:
        writer.write(f"HMSG {subject} {len(head)} {len(head)}\r\n{head}\r\n".encode())
    refused: list[str] = []
    traces: dict[str, Trace] = {}
    with suppress(TimeoutError):
        async with timeout(_TRACES):
            # A server that hears something that it does not allow hangs up.
            while len(traces) < len(publish) and (line := await reader.readline()):
                if line.startswith(b"-ERR"):
                    refused.append(_error_text(line))
                elif line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                elif line.startswith((b"LMSG", b"HMSG")):
                    trace = parse_trace(await _body(reader, line))
                    # Servers behind the hub answer too, with what they would do.
                    traces |= {trace.subject: trace} if trace is not None and trace.server == hub else {}
    return refused, traces


async def _body(reader: asyncio.StreamReader, line: bytes) -> bytes:
    size = int(line.split()[-1])
    if size > LINE:
        raise ValueError("it sent too much")
    return (await reader.readexactly(size + 2))[:size]


def _error_text(line: bytes) -> str:
    return line.removeprefix(b"-ERR").strip().strip(b"'").decode(errors="replace")
