"""The input `syslog`: programs and devices send messages over TCP or TLS (RFC 5424, RFC 3164; RFC 6587, RFC
5425). A message is a reading whose value is its text.

Syslog has no acknowledgement. No more is read of a connection than its share of `buffer` until that was
stored, so its sender is slowed. If the agent is killed, what was read and not stored is lost (at most 1 MiB a
connection), and what stands in the kernel's buffers on both sides; an ordered stop stores what was read.

Messages that can't be read become dead letters, and so do those above `message` bytes, by their beginning,
and one in which a connection ends. A connection that speaks HTTP or TLS on a plain port, or whose lengths do
not fit, is closed and counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

from agent.base.files import open_regular
from agent.base.http_access import AccessError, is_loopback
from agent.base.listen_sockets import PortServer, cannot_listen
from agent.config import ConfigError, listen_address
from agent.leaf.inputs.shared.access import ListenInput
from agent.leaf.inputs.shared.gatherer import Buffer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.inputs.socket.streams import Connections, Terms
from agent.leaf.inputs.syslog import SyslogOptions, problems
from agent.leaf.inputs.syslog.connection import HANDSHAKE, SyslogConnection
from agent.leaf.inputs.syslog.parse import MessageParser
from agent.leaf.intake import Intake


class SyslogInput(ListenInput[SyslogOptions]):
    """One `syslog` input."""

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
        """Read until `stopping` is set, then store what was read. Raises `ConfigError` when the address can't
        be listened on, `AccessError` when a file cannot be used."""
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
        connections: Connections | None = None
        try:
            async with asyncio.TaskGroup() as group:
                connections = Connections(terms, Buffer(options.buffer, group))

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
                    connections.stop()
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        finally:
            if connections is not None:
                connections.close()
        submitter.end()
