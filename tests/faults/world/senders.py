"""Devices at other inputs than `http`: they number and repeat as those of `load` do."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import nats
import paho.mqtt.client as mqtt
from nats.errors import Error as NatsError
from paho.mqtt.enums import CallbackAPIVersion

from agent.contract import DEFAULT_CLASS, H_COUNT, batch_subject, inbox_prefix, leaf_stream
from agent.demo.plan import Member
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.readers import read_headers
from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import Series
from tests.faults.world.devices import (
    ANSWER_SECONDS,
    CANNOT_BE_TOLD,
    RETRY_SECONDS,
    Device,
    NatsDevice,
    Notes,
    _quiet,
)


class SocketDevice(Device):
    """Sends groups of lines to a `socket` input with `reply`, over its Unix socket."""

    def __init__(self, path: Path, series: Series, sent: Sent, notes: Notes, size: int, pace: float) -> None:
        super().__init__(series, sent, notes, size, pace)
        self._path = path
        self._socket: socket.socket | None = None

    def run(self) -> None:
        super().run()
        self._hang_up()

    def _attempt(self, numbers: range) -> float | None:
        key = f"{self.series.device}-{self.series.life}-{numbers.start}"
        try:
            answer = self._ask(b"".join(self.lines(numbers)) + f"#{key}\n".encode())
        except OSError:
            self.notes.unanswered.append(time.time())
            self._hang_up()
            return RETRY_SECONDS
        word, of, rest = answer.split(" ", 2)
        if (word, of) == ("ok", key):
            return None
        if word == "later" and CANNOT_BE_TOLD in rest:
            self.sent.unknown.update(numbers)
            return None
        if word == "later":
            self.notes.refused.append((time.time(), 503, answer))
            return min(float(rest.split(" ", 1)[0]), 1.0)
        self.notes.wrong.append(f"{self.series}, {numbers}: {answer}")
        return 1.0

    def _ask(self, group: bytes) -> str:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.connect(str(self._path))
        self._socket.sendall(group)
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._socket.recv(4096)
            if not part:
                raise ConnectionError("the connection is closed")
            answer += part
        return answer.decode()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class RequestDevice(NatsDevice):
    """Sends requests to the `nats` input, on subjects below `plant`."""

    def message(self, numbers: range) -> tuple[str, bytes]:
        return f"plant.{self.series.device}", b"".join(self.lines(numbers))

    def answered(self, numbers: range, said: dict[str, Any]) -> float | None:
        if said.get("stored") == len(numbers):
            return None
        if CANNOT_BE_TOLD in str(said):
            self.sent.unknown.update(numbers)
            return None
        if "retry" in said or "unknown" in said:
            self.notes.refused.append((time.time(), 503, str(said)))
            return min(float(said.get("retry", RETRY_SECONDS)), 1.0)
        self.notes.wrong.append(f"{self.series}, {numbers}: {said}")
        return 1.0


class FileDevice(Device):
    """Appends lines to a file; from then on they are the `file` input's, exactly once."""

    def __init__(self, path: Path, series: Series, sent: Sent, notes: Notes, size: int, pace: float) -> None:
        super().__init__(series, sent, notes, size, pace)
        self._path = path

    def _attempt(self, numbers: range) -> float | None:
        with self._path.open("ab") as file:
            file.write(b"".join(self.lines(numbers)))
            file.flush()
            os.fsync(file.fileno())
        return None


class MqttDevice(Device):
    """Publishes to a broker with QoS 1, a message a reading; the broker has what it has acknowledged."""

    def __init__(self, port: int, series: Series, sent: Sent, notes: Notes, size: int, pace: float) -> None:
        super().__init__(series, sent, notes, size, pace)
        self._port = port

    def run(self) -> None:
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, f"sender-{self.series.device}")
        self._client.max_inflight_messages_set(1000)
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        super().run()
        self._client.disconnect()
        self._client.loop_stop()

    def _attempt(self, numbers: range) -> float | None:
        topic = f"plant/{self.series.device}/any"
        under_way = [self._client.publish(topic, line.rstrip(), 1) for line in self.lines(numbers)]
        for one in under_way:
            one.wait_for_publish(ANSWER_SECONDS)
            assert one.is_published(), "the broker does not answer"
        return None


def stored_from(member: Member, input_name: str) -> int:
    """How many readings of an input the leaf's stream holds; 0 while its server does not answer."""
    stream = leaf_stream(member.domain, DEFAULT_CLASS)
    subject = batch_subject(member.domain, DEFAULT_CLASS, input_name)

    async def count() -> int:
        nc = await nats.connect(
            member.nats_url,
            nkeys_seed=str(member.state / "keys" / "agent.nk"),
            inbox_prefix=inbox_prefix(member.domain).encode(),
            allow_reconnect=False,
            error_cb=_quiet,
        )
        found: list[int] = []
        try:
            only = {"deliver_policy": "all", "filter_subject": subject}
            await read_headers(
                nc,
                JetStream(nc, timeout=5),
                stream,
                only,
                lambda one: found.append(int(one.headers[H_COUNT])),
            )
        finally:
            await nc.close()
        return sum(found)

    try:
        return asyncio.run(count())
    except (NatsError, JetStreamError, OSError, TimeoutError):
        return 0
