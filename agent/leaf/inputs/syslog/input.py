"""Accepts syslog over TCP or TLS (RFC 5424, 3164, 6587, 5425): the input `syslog`. A reading's value is the
text.

Syslog has no acknowledgement. Connections are read within their share of `buffer`. A killed agent loses at
most 1 MiB per connection and the kernel's buffers; an ordered stop stores everything read. Unreadable,
overlong and unfinished messages become dead letters. HTTP, TLS on a plain port and wrong lengths close the
connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Final

from agent.base.files import open_regular
from agent.base.http.access import AccessError, is_loopback
from agent.base.listen_sockets import PortServer, cannot_listen
from agent.config import ConfigError, listen_address
from agent.contract import Letter
from agent.leaf.inputs.shared.access import ListenInput
from agent.leaf.inputs.shared.gatherer import Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter, letter
from agent.leaf.inputs.socket.streams import Connections, StreamConnection, Terms, open_connections
from agent.leaf.inputs.syslog import SyslogOptions, problems
from agent.leaf.inputs.syslog.framing import Cut, MessageCutter, framed, message_at
from agent.leaf.inputs.syslog.parse import MessageParser
from agent.leaf.intake import Intake

HANDSHAKE: Final = 10.0
"""Seconds for a TLS handshake."""


class MessageGatherer(Gatherer):
    """Gathers blocks of length-prefixed messages."""

    def line_at(self, block: bytes, offset: int) -> bytes:
        return message_at(block, offset)


class SyslogConnection(StreamConnection):
    """One connection with its own `parser`."""

    source: Gatherer

    def __init__(self, connections: Connections, parser: MessageParser, domain: str, *, tls: bool) -> None:
        super().__init__(connections)
        self._parser, self._domain = parser, domain
        self._cutter = MessageCutter(self.terms.line)
        self.source = MessageGatherer(
            connections.buffer, parser, self.terms.submitter, self.pause, self.resume, self._garbage
        )
        # A handshake that fails never gets here otherwise.
        loop = asyncio.get_running_loop()
        self._shake = loop.call_later(HANDSHAKE + 1.0, self._no_handshake) if tls else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._shake is not None:
            self._shake.cancel()
        super().connection_made(transport)
        self._parser.sender = self._domain if is_loopback(self.sender) else self.sender

    def feed(self, data: bytes) -> None:
        cut = self._cutter.feed(data)
        if cut.messages:
            self.source.add(framed(cut.messages), self.peer)
        if cut.too_long:
            self.source.dead_letter("too_long", self._too_long(cut))
        if cut.fault is not None:
            if cut.fault.rest:
                self.source.dead_letter(cut.fault.reason, [letter(cut.fault.rest, self.peer, cut.fault.text)])
                self._transport.abort()
            else:
                self.give_up(cut.fault.reason, cut.fault.text)

    def ended(self) -> bool:
        if rest := self._cutter.end():
            text = "the connection ended in this message: it may be a part of one"
            self.source.dead_letter("cut_off", [letter(rest, self.peer, text)])
        return False

    def stop(self) -> None:
        super().stop()
        self.ended()
        self.source.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended()
        self.source.flush()
        super().connection_lost(exc)

    def _too_long(self, cut: Cut) -> list[Letter]:
        text = f"longer than {self.terms.line} bytes (option message)"
        return [Letter(begin, self.peer, text, size) for begin, size in cut.too_long]

    def _garbage(self) -> None:
        if not self._transport.is_closing():
            self.give_up("garbage", "nothing but messages that are no syslog; the connection is closed")

    def _no_handshake(self) -> None:
        if not self.connections.stopped:
            text = "a TLS handshake failed: the sender speaks plainly, or one side does not trust the other"
            self.terms.submitter.skip("handshake", "the port", text)


class SyslogInput(ListenInput[SyslogOptions]):
    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
        yield from problems(self._options)

    def _tls(self) -> ssl.SSLContext | None:
        context, authority = super()._tls(), self._options.tls_ca
        if context is None or authority is None:
            return context
        try:
            open_regular(authority).close()
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise AccessError(
                f"tls_ca {authority} holds no certificates in PEM that can be read ({error})"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Read until `stopping`, then store the rest. Raises `ConfigError` for an unusable address,
        `AccessError` for an unusable file.
        """
        options, tls = self._options, self._tls()
        address = listen_address(options.listen)
        if not is_loopback(address[0]) and options.tls_ca is None:
            self._log.warning(
                "any machine that reaches this address may send messages, in the name of any host; give "
                "tls_ca, or let a firewall choose the senders",
                listen=options.listen,
            )
        submitter = RetryingSubmitter(options, self._metrics, intake, stopping, self._log)
        show_count = self._metrics.input_connections.labels(options.name).set
        terms = Terms(submitter, options.max_connections, options.message, options.idle, show_count)
        try:
            async with open_connections(terms, options.buffer) as connections:

                def make() -> SyslogConnection:
                    parser = MessageParser(options.metric, intake.domain)
                    return SyslogConnection(connections, parser, intake.domain, tls=tls is not None)

                handshake = None if tls is None else HANDSHAKE
                port = PortServer(*address, make, ssl=tls, ssl_handshake_timeout=handshake)  # type: ignore[arg-type]
                try:
                    await port.open()
                except OSError as error:
                    raise ConfigError([cannot_listen(address, error)]) from None
                try:
                    await stopping.wait()
                finally:
                    port.close()
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        submitter.end()
