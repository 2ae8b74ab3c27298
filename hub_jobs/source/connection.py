"""A blocking NATS connection on a plain socket with requests and one subscription, without reconnect.

Failures raise and readers restart their range. It neither logs nor starts threads.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from hub_jobs.source.frames import take
from hub_jobs.source.protocol import (
    MAX_LINE,
    Denied,
    Frames,
    ProtocolError,
    ServerReply,
    SourceApiError,
    UnknownIdentity,
    Unreachable,
    WireError,
    WrongPort,
    status,
)
from hub_jobs.source.server import Server, ServerAddress, connect_options

_BUFFER: Final = 1 << 20
_REQUESTS: Final = b"1"
_NO_RESPONDERS: Final = 503
_UNKNOWN: Final = "authorization violation"
_DENIALS: Final = (
    "permissions violation",
    "user authentication",
    "account authentication",
)


class Connection:
    """One connection for one thread; close it or use `with`.

    `timeout` in seconds limits connecting, answers, and silence while reading. Raises Unreachable when no
    server answers, Denied when a server refuses the identity.
    """

    def __init__(self, server: Server, timeout: float = 5.0) -> None:
        self.server = server
        self.timeout = timeout
        self._buffer = bytearray(_BUFFER)
        self._requests = 0
        self._subscriptions = 1
        self._inbox = f"{server.inbox_prefix}.{secrets.token_hex(8)}"
        self._address: ServerAddress
        self._socket: socket.socket
        self._filled = 0
        self._needed = 0
        self.clustered = False
        """Whether the server is clustered."""
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._socket.close()

    def request(self, subject: str, payload: bytes, timeout: float | None = None) -> bytes:
        """Publish `payload` and return the answer's payload.

        Raises Unreachable without an answer within `timeout` seconds, Denied for a forbidden subject.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        self._requests += 1
        inbox = f"{self._inbox}.{self._requests}"
        self.publish(subject, inbox, payload)
        while True:
            frames = Frames()
            try:
                self.receive(frames, _REQUESTS, deadline)
            except TimeoutError:
                raise Unreachable(f"{self._address}: no answer to {subject} in {limit:g} s") from None
            for answer in frames.answers:
                if answer.subject == inbox.encode():
                    return self._answered(subject, answer)

    def api(self, verb: str, request: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send a JetStream request; `verb` follows the API prefix (`STREAM.INFO.TELEMETRY_0`).

        Raises SourceApiError with JetStream's reason, and as `request`.
        """
        payload = json.dumps(request).encode() if request else b""
        raw = self.request(f"{self.server.api_prefix}.{verb}", payload)
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise WireError(f"{self._address}: the answer to {verb} is not JSON: {raw[:80]!r}")
        if isinstance(error := answer.get("error"), dict):
            code, reason = int(error.get("code", 0)), int(error.get("err_code", 0))
            raise SourceApiError(code, reason, f"{verb}: {error.get('description', 'refused')}")
        return answer

    def subscribe(self) -> tuple[bytes, str]:
        """Subscribe to an inbox and return its id for `receive` and its subject without the last token."""
        self._subscriptions += 1
        inbox = f"{self._inbox}.pull.{self._subscriptions}"
        self._send(b"SUB %s.* %d\r\n" % (inbox.encode(), self._subscriptions))
        return b"%d" % self._subscriptions, inbox

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription; late messages are ignored."""
        self._send(b"UNSUB %s\r\n" % sid)

    def publish(self, subject: str, reply: str, payload: bytes) -> None:
        """Publish with a reply subject. Raises ValueError for a subject with blanks."""
        if not subject or any(ch.isspace() for ch in subject + reply):
            raise ValueError(f"not a subject: {subject!r}")
        line = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        self._send(line + payload + b"\r\n")

    def receive(self, frames: Frames, sid: bytes, deadline: float) -> None:
        """Read the socket and add whole frames to `frames` (see `protocol.scan`).

        `deadline` is by `time.monotonic()`. Raises TimeoutError without a whole frame by then, Unreachable at
        the connection's end, Denied for a forbidden subject.
        """
        while True:
            self._fill(deadline)
            if self._filled < self._needed:
                continue
            with memoryview(self._buffer) as view:
                data = bytes(view[: self._filled])
                try:
                    taken, self._needed = take(data, sid, frames)
                except ProtocolError as error:
                    raise WireError(f"{self._address}: {error}") from error
                self._filled -= taken
                view[: self._filled] = data[taken:]
            if self._needed > len(self._buffer):
                self._buffer.extend(bytes(self._needed - len(self._buffer)))
            if frames.errors:
                raise _refusal(self._address, frames.errors[0])
            if frames.pings:
                self._send(b"PONG\r\n" * frames.pings)
                frames.pings = 0
            if taken:
                return

    def _fill(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)
        if self._filled == len(self._buffer):
            self._buffer.extend(bytes(_BUFFER))
        try:
            with memoryview(self._buffer) as view:
                received = self._socket.recv_into(view[self._filled :])
        except TimeoutError:
            raise
        except OSError as error:
            raise Unreachable(f"{self._address}: the connection broke: {error}") from error
        if not received:
            raise Unreachable(f"{self._address}: the server closed the connection")
        self._filled += received

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise Unreachable(f"{self._address}: the connection broke while sending: {error}") from error

    def _answered(self, subject: str, answer: ServerReply) -> bytes:
        if status(answer.headers)[0] == _NO_RESPONDERS:
            raise Unreachable(
                f"{self._address}: nothing answers {subject} (the domain is unreachable, there is no "
                "JetStream, or this identity may not ask it)"
            )
        return answer.payload

    def _connect(self) -> None:
        failures = []
        for address in self.server.addresses():
            self._address, self._filled, self._needed = address, 0, 0
            try:
                self._socket = socket.create_connection((address.host, address.port), self.timeout)
            except OSError as error:
                failures.append(f"{address}: {error}")
                continue
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._greet()
                return
            except Unreachable as error:
                self._socket.close()
                failures.append(str(error))
            except BaseException:
                self._socket.close()
                raise
        raise Unreachable(
            f"no server can be reached: {', '.join(failures)}; start the hub's agent, or correct --server"
        )

    def _greet(self) -> None:
        deadline = time.monotonic() + self.timeout
        try:
            if self.server.tls_first:
                self._secure()
            info = self._info(deadline)
            self.clustered = bool(info.get("cluster"))
            if not self.server.tls_first and (self._address.tls or info.get("tls_required")):
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise Denied(f"{self._address}: TLS is asked for and the server has none")
                self._secure()
            options = json.dumps(connect_options(self.server, info)).encode()
            inbox = f"{self._inbox}.*".encode()
            self._send(b"CONNECT %s\r\nSUB %s %s\r\nPING\r\n" % (options, inbox, _REQUESTS))
            frames = Frames()
            while not frames.pongs:
                self.receive(frames, _REQUESTS, deadline)
        except TimeoutError:
            raise Unreachable(f"{self._address}: no greeting in {self.timeout:g} s") from None

    def _secure(self) -> None:
        try:
            context = self.server.tls_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=self._address.host)
        except ssl.SSLCertVerificationError as error:
            raise Denied(
                f"{self._address}: its certificate is not trusted: {error.verify_message}"
            ) from error
        except OSError as error:
            raise Unreachable(f"{self._address}: no TLS: {error}") from error

    def _info(self, deadline: float) -> dict[str, Any]:
        while (eol := self._buffer.find(b"\r\n", 0, self._filled)) < 0:
            if self._filled > MAX_LINE:
                raise WireError(f"{self._address}: this is no NATS server")
            self._fill(deadline)
        line = bytes(self._buffer[:eol])
        self._filled = 0
        try:
            info = json.loads(line.removeprefix(b"INFO "))
        except ValueError:
            info = None
        if not line.startswith(b"INFO ") or not isinstance(info, dict):
            raise WireError(f"{self._address}: this is no NATS server: it said {line[:40]!r}")
        if "compression" in info:
            # A server offers it to leaf nodes and other servers, never to clients.
            raise WrongPort(
                f"{self._address} is the server's port for leaf nodes; give that for clients "
                "(nats.listen of the hub, port 4222 unless it says otherwise)"
            )
        return info


def _refusal(address: ServerAddress, text: str) -> WireError:
    if text.lower().startswith(_UNKNOWN):
        return UnknownIdentity(f"{address}: {text}")
    denied = text.lower().startswith(_DENIALS)
    return Denied(f"{address}: {text}") if denied else Unreachable(f"{address}: the server ended it: {text}")
