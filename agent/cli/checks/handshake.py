"""Connects to a server and reads its greeting (INFO), over TLS where it wants that. Time and bytes are
bounded, whatever answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from agent.base.wait import timeout

LINE: Final = 2**20
_SECONDS: Final = 3.0
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No nats-server greeted."""

    why: str
    unknown: bool = False
    """Whether there may be one all the same: it was not asked, or waits for TLS."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A server's first words (INFO), the connection they came over, and over TLS the server's certificate."""

    info: Mapping[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    certificate: bytes | None = None

    def close(self) -> None:
        self.writer.transport.abort()


class Tls(NamedTuple):
    """How to speak TLS; `first`: before the server has said a word."""

    context: ssl.SSLContext
    first: bool = False


async def greet(address: tuple[str, int], tls: Tls | None = None) -> Greeted | Nowhere:
    """What answers on an address, over TLS where that is given or the server asks for it; a server that says
    nothing may wait for TLS first. The caller closes a `Greeted`."""
    if tls is not None and tls.first:
        return await _secured_first(address, tls.context)
    greeting = await _plain(address)
    if isinstance(greeting, Greeted) and (tls or greeting.info.get("tls_required")):
        return await _upgraded(greeting, address[0], tls.context if tls else reading())
    if isinstance(greeting, Nowhere) and tls and greeting.unknown:
        return await _secured_first(address, tls.context)
    return greeting


async def _plain(address: tuple[str, int]) -> Greeted | Nowhere:
    """`unknown` where something listens and says nothing."""
    try:
        async with timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(*address, limit=LINE)
    except TimeoutError:
        return Nowhere(f"nothing answers there within {_SECONDS:.0f} s: a wrong address, or a firewall")
    except OSError as error:
        return Nowhere(f"it cannot be reached ({_reason(error)})")
    try:
        async with timeout(_SECONDS):
            line = await reader.readline()
    except TimeoutError:
        writer.transport.abort()
        return Nowhere(f"it lets connect and says nothing for {_SECONDS:.0f} s: it hangs", unknown=True)
    except (OSError, ValueError) as error:
        writer.transport.abort()
        return Nowhere(f"it does not greet as a nats-server ({type(error).__name__})")
    return _greeted(line, reader, writer)


def _greeted(line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Greeted | Nowhere:
    verb, _, body = line.partition(b" ")
    with contextlib.suppress(ValueError):
        info = json.loads(body) if verb == b"INFO" else None
        if isinstance(info, dict) and isinstance(info.get("version"), str):
            return Greeted(info, reader, writer)
    writer.transport.abort()
    if not line:
        return Nowhere("it closes the connection and says nothing", unknown=True)
    text = line[:_SHOWN].decode(errors="replace").strip()
    return Nowhere(f"what answers there is not a nats-server: it says {text!r}")


async def _upgraded(plain: Greeted, host: str, tls: ssl.SSLContext) -> Greeted | Nowhere:
    """The same connection after its TLS handshake, with a certificate of any issuer."""
    try:
        async with timeout(_SECONDS):
            await plain.writer.start_tls(tls, server_hostname=host)
    except (OSError, TimeoutError) as error:
        plain.close()
        return Nowhere(f"its TLS handshake fails ({_reason(error)})")
    return _with_certificate(plain)


async def _secured_first(address: tuple[str, int], tls: ssl.SSLContext) -> Greeted | Nowhere:
    try:
        async with timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(
                *address, limit=LINE, ssl=tls, server_hostname=address[0]
            )
            line = await reader.readline()
    except (OSError, ValueError, TimeoutError) as error:
        return Nowhere(f"it says nothing, and its TLS handshake fails ({_reason(error)})")
    greeting = _greeted(line, reader, writer)
    return greeting if isinstance(greeting, Nowhere) else _with_certificate(greeting)


def _with_certificate(greeted: Greeted) -> Greeted:
    secured = greeted.writer.get_extra_info("ssl_object")
    return Greeted(greeted.info, greeted.reader, greeted.writer, secured.getpeercert(binary_form=True))


def reading() -> ssl.SSLContext:
    """TLS that accepts a certificate of any issuer: which ones the leaf's server trusts is its own
    configuration, and nothing secret is sent here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
