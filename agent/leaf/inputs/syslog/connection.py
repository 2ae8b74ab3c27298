"""The connections of a `syslog` input. Their senders get no answer: they are slowed while messages can't be
stored as fast as they come."""

from __future__ import annotations

import asyncio
from typing import Final

from agent.base.http_access import is_loopback
from agent.contract import Letter
from agent.leaf.inputs.shared.gatherer import Gatherer
from agent.leaf.inputs.shared.submitter import letter
from agent.leaf.inputs.socket.streams import Connections, StreamConnection
from agent.leaf.inputs.syslog.framing import Cut, MessageCutter, framed, message_at
from agent.leaf.inputs.syslog.parse import MessageParser

HANDSHAKE: Final = 10.0
"""Seconds that a TLS handshake may take."""
_LETTER: Final = 1024
"""Bytes that a dead letter counts beside what it holds."""


class MessageGatherer(Gatherer):
    """A gatherer of blocks of messages, each behind its length."""

    def line_at(self, block: bytes, offset: int) -> bytes:
        """The message whose length stands at an offset of a block."""
        return message_at(block, offset)


class SyslogConnection(StreamConnection):
    """One connection. `parser` is its own."""

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
            self._dead_letter("too_long", self._too_long(cut))
        if cut.fault is not None:
            if cut.fault.rest:
                self._dead_letter(cut.fault.reason, [letter(cut.fault.rest, self.peer, cut.fault.text)])
                self._transport.abort()
            else:
                self.give_up(cut.fault.reason, cut.fault.text)

    def ended(self) -> bool:
        if rest := self._cutter.end():
            text = "the connection ended in this message: it may be a part of one"
            self._dead_letter("cut_off", [letter(rest, self.peer, text)])
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

    def _dead_letter(self, reason: str, letters: list[Letter]) -> None:
        size = sum(len(each.received) + _LETTER for each in letters)
        self.source.hold(size)
        self.connections.buffer.group.create_task(self._keep(reason, letters, size))

    async def _keep(self, reason: str, letters: list[Letter], size: int) -> None:
        try:
            await self.terms.submitter.dead_letter(reason, letters)
        finally:
            self.source.hold(-size)

    def _garbage(self) -> None:
        if not self._transport.is_closing():
            self.give_up("garbage", "nothing but messages that are no syslog; the connection is closed")

    def _no_handshake(self) -> None:
        if not self.connections.stopped:
            text = "a TLS handshake failed: the sender speaks plainly, or one side does not trust the other"
            self.terms.submitter.skip("handshake", "the port", text)
