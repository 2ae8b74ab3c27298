"""Dials a server as a leaf's nats-server does, through proxy, TLS and websocket, and explains failures.

It follows `server/leafnode.go`: resolves names itself even with a proxy
(`findings/nats-leaf-resolves-the-hub-itself-behind-a-proxy.sh`), and begins TLS after INFO without
`handshake_first`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.base.listen_sockets import host_and_port
from agent.base.nats_server import server_info
from agent.base.wait import timeout
from agent.server.http_head import HeadError, read_head
from agent.server.hub_route import PLAIN, RELAY_REFUSAL, Proxy, Route, Tls, reading
from agent.server.websocket import WebSocket

LINE: Final = 2**20
_SECONDS: Final = 3.0
_STEP_SECONDS: Final = 2.0
_SHOWN: Final = 40
_MOST_ADDRESSES: Final = 4
_LISTENS: Final = "see the network, and whether the hub's server listens there for leaves (leaf_listen)"
_TABLE: Final = "nats.remote.tls"
WANTS_CERTIFICATE: Final = "it wants a certificate of the one that dials"


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No nats-server greeted."""

    why: str
    unknown: bool = False
    """Whether one may exist: not asked, or waiting for TLS."""
    remedy: str = _LISTENS
    away: bool = False
    """Whether network or machine may be missing, rather than a setting."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A server's INFO, connection and certificate."""

    info: Mapping[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    certificate: bytes | None = None
    websocket: WebSocket | None = None

    def write(self, data: bytes) -> None:
        (self.websocket or self.writer).write(data)

    def close(self) -> None:
        if self.websocket is not None:
            self.websocket.close()
        self.writer.transport.abort()


class _FailedError(Exception):
    """Carries a dial's outcome."""

    def __init__(self, outcome: Nowhere) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


async def resolved(host: str, port: int) -> Sequence[tuple[str, int]] | Nowhere:
    """Return some addresses of a host."""
    loop = asyncio.get_running_loop()
    try:
        async with timeout(_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        why = f"the name {host} is not resolved within {_SECONDS:.0f} s (DNS)"
        return Nowhere(
            why, remedy="see this machine's resolver (/etc/resolv.conf) and the network", away=True
        )
    except (OSError, UnicodeError) as error:
        why = f"the name {host} cannot be resolved (DNS: {_reason(error)})"
        remedy = "correct the name in nats.hub_urls, or see this machine's resolver"
        return Nowhere(why, remedy=remedy, away=True)
    return list(dict.fromkeys((str(entry[4][0]), port) for entry in found))[:_MOST_ADDRESSES]


async def greet(address: tuple[str, int], route: Route = PLAIN, host: str | None = None) -> Greeted | Nowhere:
    """Return what answers; the caller closes a `Greeted`."""
    name = host or address[0]
    greeting = await _attempt(address, route, name)
    if isinstance(greeting, Greeted) or route.tls is None or route.websocket is not None:
        return greeting
    if greeting.unknown and not route.tls.first:
        return await _beside(address, route, name, greeting, first=True)
    if "speaks no TLS" in greeting.why:
        return await _beside(address, route, name, greeting, first=False)
    return greeting


async def _beside(
    address: tuple[str, int], route: Route, name: str, failed: Nowhere, *, first: bool
) -> Nowhere:
    """Return the failure, or that TLS begins at another moment."""
    assert route.tls is not None
    tls = Tls(reading(), first) if first else None
    other = await _attempt(address, replace(route, tls=tls, upgrades=False), name)
    if isinstance(other, Nowhere) and other.why != WANTS_CERTIFICATE:
        return failed
    if isinstance(other, Greeted):
        other.close()
    if first:
        return Nowhere(
            "it waits for TLS before it greets, and this leaf's server waits for the greeting",
            remedy=f"set handshake_first = true in {_TABLE}",
        )
    if isinstance(other, Greeted) and not other.info.get("tls_required"):
        return Nowhere("it speaks no TLS, and this leaf's server wants it", remedy="set TLS up at the hub")
    return Nowhere(
        "it greets before TLS, and this leaf's server begins with TLS",
        remedy=f"take handshake_first out of {_TABLE}, or set it at the hub",
    )


async def _attempt(address: tuple[str, int], route: Route, name: str) -> Greeted | Nowhere:
    writers: list[asyncio.StreamWriter] = []
    try:
        return await _greeted_over(address, route, name, writers)
    except _FailedError as failed:
        for writer in writers:
            writer.transport.abort()
        return failed.outcome
    except BaseException:
        for writer in writers:
            writer.transport.abort()
        raise


async def _greeted_over(
    address: tuple[str, int], route: Route, name: str, writers: list[asyncio.StreamWriter]
) -> Greeted:
    tls = route.tls
    first = tls if tls is not None and (tls.first or route.websocket is not None) else None
    if route.proxy is None:
        reader, writer = await _open(address, "it", writers, first, name)
    else:
        reader, writer = await _tunnelled(address, name, route.proxy, writers)
        if first is not None:
            await _secure(writer, first, name)
    websocket = None
    if route.websocket is not None:
        websocket = WebSocket(reader, writer, LINE)
        await _upgraded(websocket, host_and_port(name, address[1]), route.websocket)
        reader = websocket.reader
    try:
        info = await _info(reader)
    except BaseException:
        if websocket is not None:
            websocket.close()
        raise
    wants = bool(info.get("tls_required")) and websocket is None
    if first is None and route.upgrades and (tls is not None or wants):
        if tls is None and route.proxy is not None:
            raise _FailedError(
                Nowhere(
                    "it wants TLS, which a link through a proxy begins only where it is configured",
                    remedy=f"write {_TABLE}, or tls:// in nats.hub_urls",
                )
            )
        await _secure(writer, tls or Tls(ssl.create_default_context()), name)
    secret = writer.get_extra_info("ssl_object")
    certificate = None if secret is None or not route.upgrades else secret.getpeercert(binary_form=True)
    return Greeted(info, reader, writer, certificate, websocket)


async def _tunnelled(
    address: tuple[str, int], name: str, proxy: Proxy, writers: list[asyncio.StreamWriter]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if proxy.problem:
        raise _FailedError(
            Nowhere(
                f"the proxy is not asked: {proxy.problem}",
                unknown=True,
                remedy="run this with the environment of the agent, or see `petiole status` for the link",
            )
        )
    where = f"the proxy at {host_and_port(*proxy.address)}"
    reader, writer = await _open(proxy.address, where, writers)
    remedy = "see nats.remote.proxy, and what the proxy allows"
    async with _step(where, remedy):
        if proxy.tls is not None:
            await writer.start_tls(proxy.tls, server_hostname=proxy.address[0])
        target = host_and_port(name, address[1])
        authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n".encode())
        status, _ = await read_head(reader)
    if status.startswith(RELAY_REFUSAL):
        remedy = "see nats.resume_listen at the hub, and whether a firewall admits its port"
        raise _FailedError(
            Nowhere(f"no session with the relay at {status.removeprefix(RELAY_REFUSAL)}", remedy=remedy)
        )
    if not status.startswith("200"):
        raise _FailedError(Nowhere(f"{where} refuses to connect to {target}: {status}", remedy=remedy))
    return reader, writer


async def _open(
    address: tuple[str, int],
    what: str,
    writers: list[asyncio.StreamWriter],
    tls: Tls | None = None,
    name: str = "",
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, with `tls` from the first byte, before clear text could arrive."""
    secured: dict[str, Any] = {}
    if tls is not None:
        secured = {"ssl": tls.context, "server_hostname": tls.name or name}
        secured["ssl_handshake_timeout"] = _STEP_SECONDS
    try:
        async with timeout(_SECONDS + (0.0 if tls is None else _STEP_SECONDS)):
            reader, writer = await asyncio.open_connection(*address, limit=LINE, **secured)
    except ConnectionAbortedError:
        why = f"it does not answer in TLS within {_STEP_SECONDS:.0f} s"
        raise _FailedError(Nowhere(why)) from None
    except ssl.SSLError as error:
        raise _FailedError(tls_failure(error)) from None
    except TimeoutError:
        place = "there" if what == "it" else f"where {what} should be"
        why = f"nothing answers {place} within {_SECONDS:.0f} s: a wrong address, or a firewall"
        raise _FailedError(Nowhere(why, away=True)) from None
    except (OSError, UnicodeError) as error:
        if tls is not None and isinstance(error, ConnectionResetError):
            raise _FailedError(tls_failure(error)) from None
        why = f"{what} cannot be reached ({_reason(error)})"
        raise _FailedError(Nowhere(why, away=True)) from None
    writers.append(writer)
    return reader, writer


@contextlib.asynccontextmanager
async def _step(what: str, remedy: str) -> AsyncIterator[None]:
    """Wrap a step's failure."""
    try:
        async with timeout(_STEP_SECONDS):
            yield
    except TimeoutError:
        raise _FailedError(Nowhere(f"{what} does not answer", remedy=remedy)) from None
    except HeadError as error:
        raise _FailedError(Nowhere(f"{what} answers {error}", remedy=remedy)) from None
    except ssl.SSLError as error:
        raise _FailedError(Nowhere(f"TLS with {what} fails ({_tls_words(error)})", remedy=remedy)) from None
    except (OSError, EOFError) as error:
        raise _FailedError(Nowhere(f"{what} ends the connection ({_reason(error)})", remedy=remedy)) from None


async def _upgraded(websocket: WebSocket, host: str, path: str) -> None:
    async with _step("the websocket", "see whether that port of the hub's server has a `websocket` listener"):
        await websocket.open(host, path)


async def _secure(writer: asyncio.StreamWriter, tls: Tls, name: str) -> None:
    try:
        async with timeout(_SECONDS):
            await writer.start_tls(tls.context, server_hostname=tls.name or name)
    except TimeoutError:
        why = f"it does not answer in TLS within {_SECONDS:.0f} s"
        raise _FailedError(Nowhere(why)) from None
    except OSError as error:
        raise _FailedError(tls_failure(error)) from None


async def _info(reader: asyncio.StreamReader) -> Mapping[str, Any]:
    try:
        async with timeout(_SECONDS):
            line = await reader.readline()
    except TimeoutError:
        why = f"it lets connect and says nothing for {_SECONDS:.0f} s: it hangs"
        raise _FailedError(Nowhere(why, unknown=True, away=True)) from None
    except ssl.SSLError as error:
        raise _FailedError(tls_failure(error)) from None
    except (OSError, ValueError) as error:
        why = f"it does not greet as a nats-server ({type(error).__name__})"
        raise _FailedError(Nowhere(why)) from None
    if (info := server_info(line)) is not None:
        return info
    if not line:
        raise _FailedError(Nowhere("it closes the connection and says nothing", unknown=True, away=True))
    text = line[:_SHOWN].decode(errors="replace").strip()
    raise _FailedError(Nowhere(f"what answers there is not a nats-server: it says {text!r}"))


def tls_failure(error: OSError) -> Nowhere:
    """Explain a TLS failure."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Nowhere(
            f"this leaf does not trust the hub's certificate: {error.verify_message}",
            remedy=_untrusted(error),
        )
    reason = _tls_words(error)
    if "certificate required" in reason:
        return Nowhere(WANTS_CERTIFICATE, remedy=f"name cert_file and key_file in {_TABLE}")
    if "alert" in reason and any(word in reason for word in ("certificate", "unknown ca", "decrypt error")):
        return Nowhere(
            f"the hub refuses this leaf's certificate ({reason})",
            remedy=f"see who signed cert_file of {_TABLE}, for which use, and how long it is valid",
        )
    if any(word in reason for word in ("wrong version number", "record layer failure", "http request")):
        return Nowhere("what answers there speaks no TLS")
    return Nowhere(f"its TLS handshake fails ({reason})")


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    words = error.verify_message.lower()
    if "expired" in words:
        return "renew it, or that of its authority, at the hub; see this machine's clock"
    if "not yet valid" in words:
        return "set this machine's clock, or the hub's that issued it"
    if "mismatch" in words:
        return "write a name of the certificate into nats.hub_urls, or issue it for this name"
    return f"name the authority that signed it in ca_file of {_TABLE}"


def _tls_words(error: Exception) -> str:
    """Return OpenSSL's reason, such as `tlsv1 alert unknown ca`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else _reason(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and (error.errno or 0) > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno or 0)  # asyncio has words of its own
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
