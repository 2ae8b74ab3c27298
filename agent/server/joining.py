"""Dials the hub as this leaf and disconnects, to check its key. The registrar knows the name
(`CHECK_SERVER`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import nkeys

from agent.base.files import is_there, open_regular
from agent.base.logs import shown as printable
from agent.base.nats_server import MINIMUM, parse_version, server_info
from agent.base.wait import timeout
from agent.contract import CHECK_SERVER
from agent.server.dialling import Greeted, Nowhere, greet, resolved, tls_failure
from agent.server.hub_route import PLAIN, Route, Tls, address_of, reading

SILENCE: Final = "it lets connect and says nothing more"
TOO_OLD: Final = "it is too old to be asked more"
CLIENT_PORT: Final = "it is a server's port for clients"
UNKNOWN_KEY: Final = "Authorization Violation"
_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LetIn:
    """The hub accepted the leaf."""

    info: Mapping[str, Any]
    """INFO after CONNECT."""


@dataclass(frozen=True, slots=True)
class LeafRefused:
    """The hub refused the leaf."""

    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Dialled:
    """A dialled hub address."""

    url: str
    greeting: Greeted | Nowhere
    outcome: LetIn | LeafRefused | None = None
    """None if not tried."""
    dead: Mapping[str, Nowhere] = field(default_factory=dict)
    """Silent addresses of a name with a working one."""
    certificate: bytes | None = None
    """The shown certificate, trusted or not."""


def shown(url: str) -> str:
    """Return an address without login."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


Explore = Callable[[Greeted, Mapping[str, Any]], Awaitable[LetIn]]


async def _let_in(_: Greeted, info: Mapping[str, Any]) -> LetIn:
    return LetIn(info)


async def dial(url: str, seed: Path | None, route: Route = PLAIN, explore: Explore = _let_in) -> Dialled:
    """Dial a hub address with `seed` or its login, within ten seconds; `explore` continues once accepted."""
    parts = urlsplit(url)
    greeting, dead = await _first_greeting(url, route)
    if isinstance(greeting, Nowhere):
        return Dialled(url, greeting, dead=dead, certificate=await _certificate(url, route, greeting))
    outcome: LetIn | LeafRefused | None
    try:
        outcome = await _joined(parts, greeting, seed, explore)
    except TimeoutError:
        outcome = LeafRefused(SILENCE)
    except ssl.SSLError as error:
        failure = tls_failure(error)
        outcome = LeafRefused(failure.why, failure.remedy)
    except (OSError, ValueError, EOFError) as error:
        outcome = LeafRefused(f"it ended the conversation ({error})")
    finally:
        greeting.close()
    return Dialled(url, greeting, outcome, dead, greeting.certificate)


async def certificate_of(url: str, route: Route = PLAIN) -> bytes | None:
    """Return an address's certificate, trusted or not, or None."""
    greeting, _ = await _first_greeting(url, route)
    if isinstance(greeting, Nowhere):
        return await _certificate(url, route, greeting)
    greeting.close()
    return greeting.certificate


async def _first_greeting(url: str, route: Route) -> tuple[Greeted | Nowhere, dict[str, Nowhere]]:
    host, port = address_of(url)
    addresses = await resolved(host, port)
    if isinstance(addresses, Nowhere):
        return addresses, {}
    if route.proxy is not None:  # it is given the name
        return await greet((host, port), route, host), {}
    found = await asyncio.gather(*(greet(address, route, host) for address in addresses))
    dead = {
        address[0]: one for address, one in zip(addresses, found, strict=True) if isinstance(one, Nowhere)
    }
    greeted = [one for one in found if isinstance(one, Greeted)]
    for other in greeted[1:]:
        other.close()
    if greeted:
        return greeted[0], dead
    firm = [one for one in dead.values() if "unreachable" not in one.why]
    return (firm or list(dead.values()))[0], {}


async def _certificate(url: str, route: Route, failed: Nowhere) -> bytes | None:
    if "certificate" not in failed.why:
        return None
    host, _ = address_of(url)
    tls = Tls(reading(), route.tls is not None and route.tls.first)
    trusting = Route(tls, route.proxy, route.websocket)
    other = await greet(address_of(url), trusting, host)
    if isinstance(other, Nowhere):
        return None
    other.close()
    return other.certificate


async def _joined(
    parts: SplitResult, greeting: Greeted, seed: Path | None, explore: Explore
) -> LetIn | LeafRefused | None:
    if "client_ip" in greeting.info:  # which a server tells its clients, and no leaf
        return LeafRefused(CLIENT_PORT)
    if (version := parse_version(str(greeting.info["version"]))) is None or version < MINIMUM:
        # Before 2.11 a server delivers what is only to be traced; in some versions after that every leaf that
        # comes restarts all sources (nats-server #7796).
        return LeafRefused(TOO_OLD)
    credentials = _credentials(parts, seed, greeting.info)
    if credentials is None:
        return None
    async with timeout(2 * _SECONDS):
        info = await _connect(greeting, credentials)
        return info if isinstance(info, LeafRefused) else await explore(greeting, info)


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


async def _connect(greeting: Greeted, credentials: Mapping[str, Any]) -> Mapping[str, Any] | LeafRefused:
    """Return INFO after CONNECT, or the refusal."""
    hello = {
        "name": f"{CHECK_SERVER}.{secrets.token_hex(4)}",  # the hub ends a link of the same name
        "version": greeting.info.get("version"),
        "headers": True,
        "protocol": 1,
        **credentials,
    }
    greeting.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
    info: dict[str, Any] = {}
    async with timeout(_SECONDS):
        while not (line := await greeting.reader.readline()).startswith(b"PONG"):
            if line.startswith(b"INFO"):
                if (found := server_info(line)) is None:
                    raise ValueError("an INFO that is damaged")
                info = found
            elif line.startswith(b"-ERR"):
                return LeafRefused(error_text(line))
            elif not line:
                return LeafRefused("it hung up")
            elif line.startswith(b"PING"):
                greeting.write(b"PONG\r\n")
    return info


def error_text(line: bytes) -> str:
    """Return the text of a server error."""
    return printable(line.removeprefix(b"-ERR").strip().strip(b"'").decode(errors="replace"))
