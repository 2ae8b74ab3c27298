"""Runs one broker connection with paho's client on this event loop.

Waiting messages are bounded; above that the socket is not read, so TCP slows the broker. Only `acknowledge`
acknowledges, so the broker's session resends the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from msgspec import Struct
from paho.mqtt.client import MQTT_ERR_SUCCESS, Client, MQTTMessage, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from agent.base.wait import event_within, loop_time, timeout

MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 4 * 2**20
MAX_PACKET: Final = 8 * 2**20
"""Largest message read; the protocol allows 256 MiB."""
_CONNECT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 2.0
"""Time for the broker to close an ended connection."""
_DISCARDED: Final = 64 * 2**10
_REFUSED: Final = 128


class BrokerError(Exception):
    """The broker is unreachable, refused or gone; the text has the reason."""


class Broker(Struct, frozen=True):
    """Address and login."""

    host: str
    port: int
    client_id: str
    user: str | None
    password: str | None
    tls: ssl.SSLContext | None
    keepalive: int


class Received(NamedTuple):
    """A message with the broker's `repeat` and `retained` marks."""

    topic: str
    payload: bytes
    qos: int
    packet_id: int
    repeat: bool
    retained: bool = False
    """Sent because of the subscription, so its age is unknown."""


class Session:
    """A connection during `connected`; calls `subscribed` and `unsubscribed` after the broker's grants."""

    def __init__(
        self, broker: Broker, subscribed: Callable[[], None], unsubscribed: Callable[[], None]
    ) -> None:
        self._broker, self._ready = broker, subscribed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Received] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._over: str | None = None
        self.resumed = False
        """Whether the broker kept the session."""
        self._reading: int | None = None
        self._writing: int | None = None
        self._answer: asyncio.Future[str | None] = self._loop.create_future()
        self._filters: list[str] = []
        self._client = client = Client(
            CallbackAPIVersion.VERSION2,
            broker.client_id,
            clean_session=False,
            protocol=MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = _CONNECT_SECONDS
        if broker.user is not None:
            client.username_pw_set(broker.user, broker.password)
        if broker.tls is not None:
            client.tls_set_context(broker.tls)
        client.on_connect = self._connected
        client.on_subscribe = self._subscribed
        client.on_unsubscribe = lambda *_: unsubscribed()
        client.on_message = self._message
        client.on_disconnect = self._disconnected
        client.on_socket_close = self._closed
        client.on_socket_register_write = self._write_soon

    @property
    def over(self) -> str | None:
        """Why the connection ended, or None."""
        return self._over

    @contextlib.asynccontextmanager
    async def connected(self, filters: list[str], ended: list[str]) -> AsyncIterator[None]:
        """Connect and request subscriptions and `ended` ones, without waiting; refusal ends the connection.

        Raises `BrokerError`.
        """
        self._filters = filters
        looking: asyncio.Task[None] | None = None
        try:
            await self._dial()
            looking = asyncio.create_task(self._look())
            await self._let_in()
            # In this order a message between the two may come twice, and none is missed.
            self._client.subscribe([(filter_, 1) for filter_ in filters])
            if ended:
                self._client.unsubscribe(ended)
            yield
        finally:
            if looking is not None:
                looking.cancel()
            self._client.on_disconnect = None
            await self._leave()
            self._end("closed")
            if (sock := self._client.socket()) is not None:
                sock.close()

    async def next(self, count: int, most_bytes: int, due: float | None = None) -> list[Received]:
        """Return up to `count` waiting messages, at least one unless over or `due` in loop time."""
        while not self._waiting and self._over is None:
            self._arrived.clear()
            if not await event_within(self._arrived, None if due is None else due - loop_time()):
                break
        messages: list[Received] = []
        size = 0
        while self._waiting and len(messages) < count and (not messages or size < most_bytes):
            messages.append(self._waiting.popleft())
            size += len(messages[-1].payload)
        self._bytes -= size
        self._read_if_room()
        return messages

    def acknowledge(self, message: Received) -> bool:
        """Acknowledge a message; returns whether it was sent."""
        if self._over is not None or not message.qos:
            return False
        self._client.ack(message.packet_id, message.qos)
        return True

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 0, unless over."""
        if self._over is None:
            self._client.publish(topic, payload)

    async def _dial(self) -> None:
        broker = self._broker
        try:
            await asyncio.to_thread(self._client.connect, broker.host, broker.port, broker.keepalive)
        except (OSError, ValueError) as error:
            raise BrokerError(f"it cannot be reached: {error}") from None
        self._read_if_room()

    async def _let_in(self) -> None:
        try:
            async with timeout(_CONNECT_SECONDS):
                refusal = await self._answer
        except TimeoutError:
            raise BrokerError("it does not answer in time") from None
        if refusal is not None:
            raise BrokerError(f"it does not let us in: {refusal}")

    async def _look(self) -> None:
        """Keep the connection alive and detect its end."""
        while self._client.loop_misc() == MQTT_ERR_SUCCESS:  # noqa: ASYNC110 - paho has no event
            await asyncio.sleep(_LOOK_SECONDS)
        self._end("it has not answered a ping, or has closed the connection")

    def _read_if_room(self) -> None:
        room = len(self._waiting) < MAX_WAITING and self._bytes < MAX_WAITING_BYTES and self._over is None
        sock = self._client.socket()
        if room and self._reading is None and sock is not None:
            self._reading = sock.fileno()
            self._loop.add_reader(self._reading, self._readable)
        elif not room and self._reading is not None:
            self._loop.remove_reader(self._reading)
            self._reading = None

    def _readable(self) -> None:
        try:
            while True:
                self._client.loop_read()
                coming = self._client._in_packet["remaining_length"]
                if coming > MAX_PACKET:
                    self._end(f"it sends {coming} bytes at once, more than {MAX_PACKET}; delete them there")
                    return
                sock: Any = self._client.socket()
                # What TLS has unpacked already does not make the socket readable again.
                if not (isinstance(sock, ssl.SSLSocket) and sock.pending() and self._reading is not None):
                    return
        except (OSError, ValueError) as error:
            self._end(f"the connection broke: {error}")

    async def _leave(self) -> None:
        """Send waiting acknowledgements and DISCONNECT, and let the broker close.

        Closing here with unread bytes could reset the connection before the broker read all, and
        unacknowledged messages may be stored twice.
        """
        sock = self._client.socket()
        if self._over is not None or sock is None:
            return
        self._forget_socket()
        with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(sock.fileno())) as kept:
            self._client.disconnect()
            self._client.loop_write()  # closes its own descriptor
            async with timeout(_LEAVE_SECONDS):
                while await self._loop.sock_recv(kept, _DISCARDED):
                    pass

    def _write_soon(self, _client: Client, _data: Any, _sock: Any) -> None:
        self._loop.call_soon_threadsafe(self._write)

    def _write(self) -> None:
        if self._over is not None:
            return
        try:
            if self._client.want_write():
                self._client.loop_write()  # closes the socket when the connection broke
        except (OSError, ValueError) as error:
            self._end(f"the connection broke: {error}")
            return
        sock = self._client.socket()
        if sock is None:
            return
        if self._client.want_write() and self._writing is None:
            self._writing = sock.fileno()
            self._loop.add_writer(self._writing, self._write)
        elif not self._client.want_write() and self._writing is not None:
            self._loop.remove_writer(self._writing)
            self._writing = None

    def _connected(self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        self.resumed = bool(flags.session_present)
        if not self._answer.done():
            self._answer.set_result(str(reason) if reason.is_failure else None)

    def _subscribed(self, _client: Any, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        granted = zip(self._filters, reasons, strict=False)
        refused = [filter_ for filter_, reason in granted if reason.value >= _REFUSED]
        if refused:
            self._end(f"it refuses the subscription to {', '.join(refused)}")
        elif self._over is None:
            self._ready()

    def _message(self, _client: Any, _data: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = bytes(message._topic).decode(errors="backslashreplace")
        self._waiting.append(
            Received(
                topic,
                bytes(message.payload),
                message.qos,
                message.mid,
                bool(message.dup),
                bool(message.retain),
            )
        )
        self._bytes += len(message.payload)
        self._arrived.set()
        self._read_if_room()

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._loop.call_soon_threadsafe(self._end, f"the connection has ended: {reason}")

    def _closed(self, _client: Any, _data: Any, sock: Any) -> None:
        self._forget_socket()

    def _forget_socket(self) -> None:
        if self._reading is not None:
            self._loop.remove_reader(self._reading)
        if self._writing is not None:
            self._loop.remove_writer(self._writing)
        self._reading = self._writing = None

    def _end(self, why: str) -> None:
        if self._over is not None:
            return
        self._over = why
        self._forget_socket()
        # The rest comes again, for it was not acknowledged.
        self._waiting = deque(message for message in self._waiting if message.qos == 0)
        self._bytes = sum(len(message.payload) for message in self._waiting)
        self._arrived.set()
        if not self._answer.done():
            self._answer.set_exception(BrokerError(why))
            self._answer.exception()  # marked as read: perhaps nothing waits for it
