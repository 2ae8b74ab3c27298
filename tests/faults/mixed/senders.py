"""Devices at inputs that no other case sends to, and one with the device key that puts headers into its
messages which are another's to write."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from agent.contract import DEFAULT_CLASS
from agent.demo.plan import Member
from tests.faults.mixed.dimensions import Headers
from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import LIFE, NUMBER, Series, contents, reading
from tests.faults.world.devices import RETRY_SECONDS, Device, DirectDevice, HttpDevice, Notes
from tests.faults.world.machine import Machine
from tests.faults.world.senders import FileDevice
from tests.harness.mqtt_client import PASSWORD, USER

_PUBACK_SECONDS = 5.0
SUFFIX = "_value"
"""What line protocol adds to a metric: the name of the field."""
METER = "pump-3"
"""The device of the program that prints."""
_NOTED = "meter.noted"


class LineProtocolDevice(HttpDevice):
    """Posts line protocol, a reading a line."""

    path = "/write?precision=us"
    content_type = "text/plain; charset=utf-8"

    def lines(self, numbers: range) -> list[bytes]:
        return [self._line(n).encode() for n in numbers]

    def _line(self, n: int) -> str:
        metric, value = contents(self.series, n)
        told = json.dumps(value)  # a text of these readings has nothing to escape
        tags = f"{LIFE}={self.series.life},{NUMBER}={n}"
        return f"{metric},host={self.series.device},{tags} {SUFFIX[1:]}={told} {self.sent.ts_us(n)}\n"


class RotatedFileDevice(FileDevice):
    """Appends lines to a file that is renamed again and again, as logrotate does."""

    rotations = 6
    _EVERY = 25
    """Requests from one rotation to the next."""

    def __init__(self, path: Path, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(path, series, sent, notes, 10, 0.02)
        self.rotated = self._requests = 0
        self.rotates = threading.Event()
        """Once something of the first file is stored: one that is rotated before that is never read."""

    def _attempt(self, numbers: range) -> float | None:
        self._requests += 1
        due = self._requests % self._EVERY == 0 and self.rotated < self.rotations
        if due and self.rotates.is_set():
            for number in range(self.rotated, 0, -1):
                self._numbered(number).rename(self._numbered(number + 1))
            self._path.rename(self._numbered(1))
            self.rotated += 1
        return super()._attempt(numbers)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class PrintingDevice(Device):
    """A program that the agent runs and that prints readings: what it printed it has noted before. Nothing
    is promised to it."""

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(series, sent, notes, 1, 0.05)
        self._noted = member.directory / _NOTED

    def run(self) -> None:
        while not self._giving_up.wait(self.pace):
            self._read()

    def end(self) -> None:
        """Let it print no more; what it has printed by then is noted a moment later."""
        super().end()
        self._noted.with_suffix(".stop").touch()

    def _read(self) -> None:
        for line in self._noted.read_text().splitlines()[self.sent.sent :]:
            self.sent.request(1, int(line))


def meter(member: Member) -> list[str]:
    """The command that prints the readings of a `PrintingDevice`."""
    program, noted = member.directory / "meter.py", member.directory / _NOTED
    program.parent.mkdir(parents=True, exist_ok=True)
    noted.touch()
    series = (member.domain, DEFAULT_CLASS, METER, 1)
    root, stop = str(Path(__file__).parents[3]), str(noted.with_suffix(".stop"))
    program.write_text(_PROGRAM.format(root=root, series=series, noted=str(noted), stop=stop))
    return [sys.executable, str(program)]


_PROGRAM = """\
import json, os, sys, time
sys.path.insert(0, {root!r})
from tests.faults.oracle.numbered import Series, reading
series, noted = Series(*{series!r}), open({noted!r}, "a+")
noted.seek(0)
n = len(noted.read().splitlines())
while True:
    n, ts = n + 1, time.time_ns() // 1000
    print(ts, file=noted, flush=True)
    print(json.dumps(reading(series, n, ts)), flush=True)
    time.sleep(0.05)
    while os.path.exists({stop!r}):
        time.sleep(0.05)
"""


class MqttLeafDevice(Device):
    """Publishes to the listener of the leaf's own server with QoS 1, one message after the other; what is not
    answered it publishes again, which nothing tells from another message."""

    def __init__(self, port: int, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(series, sent, notes, 1, 0.05)
        sent.at_least_once = True
        self._port = port
        self._client: mqtt.Client | None = None

    def run(self) -> None:
        super().run()
        self._hang_up()

    def _attempt(self, numbers: range) -> float | None:
        n = numbers.start
        told = reading(self.series, n, self.sent.ts_us(n))
        topic = f"readings/{DEFAULT_CLASS}/{told.pop('device')}/{told.pop('metric')}"
        try:
            under_way = self._connected().publish(topic, json.dumps(told), 1)
            under_way.wait_for_publish(_PUBACK_SECONDS)
            if under_way.is_published():
                return None
        except (OSError, ValueError, RuntimeError):
            pass  # it is told by its client that it is not connected
        self.sent.repeated.add(n)
        self.notes.unanswered.append(time.time())
        self._hang_up()
        return RETRY_SECONDS

    def _connected(self) -> mqtt.Client:
        if self._client is None:
            name = f"sender-{self.series.device}"
            client = mqtt.Client(
                CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv311, reconnect_on_failure=False
            )
            client.username_pw_set(USER, PASSWORD)
            client.connect("127.0.0.1", self._port)
            client.loop_start()
            self._client = client
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None


_AHEAD = 8
"""So many batches ahead of the agent an id is taken."""

PETIOLE: Final[tuple[Mapping[str, str], ...]] = (
    {"Petiole-Count": "2147483648"},
    {"Petiole-Count": "-1", "Petiole-Version": "1"},
    {"Petiole-Version": "99"},
    {"Petiole-Requests": "pump-1-1-1:10:0"},
    {"Petiole-Position": "{}"},
    {"Petiole-Sealed-At": "1"},
    {"Petiole-Clock": "yes"},
    {"Content-Encoding": "zstd"},
    {"Content-Type": "application/x-ndjson", "Petiole-Count": "1", "Petiole-Version": "1"},
)
SERVER: Final[tuple[Mapping[str, str], ...]] = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-Expected-Last-Sequence": "1"},
    {"Nats-Expected-Stream": "TELEMETRY_0"},
    {"Nats-Expected-Last-Msg-Id": "other"},
    {"Nats-Stream-Source": "TEL_edge-9_normal 1 > > >"},
    {"nats-stream-source": "TEL_edge-9_normal 1 > > >"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "tel.edge-1.normal.press-9.m0"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Stream": "TELEMETRY_0", "Nats-Sequence": "1", "Nats-Subject": "tel.edge-9.normal.a.b"},
    {"Nats-Marker-Reason": "MaxAge"},
)


class ForgingDevice(DirectDevice):
    """Publishes readings of its own with forged headers; what is refused or taken for a repeat it publishes
    again with honest ones. `answers` counts what forged messages were answered."""

    def __init__(self, leaf: Machine, series: Series, sent: Sent, notes: Notes, forged: Headers) -> None:
        super().__init__(leaf.member, series, sent, notes, 1, 0.1)
        ways: dict[Headers, Callable[[], Iterator[Mapping[str, str]]]] = {
            Headers.MESSAGE_ID: self._ids,
            Headers.PETIOLE: lambda: itertools.cycle(PETIOLE),
            Headers.SERVER: lambda: itertools.cycle(SERVER),
        }
        self._leaf, self._forged = leaf, ways[forged]()
        sent.at_least_once = True  # under the id of another a repeat is not told from that other's message
        self._tried, self._headers = 0, dict[str, str]()
        self.stored = self.refused = 0

    def headers(self, numbers: range) -> dict[str, str]:
        if self._tried != numbers.start:
            self._tried = numbers.start
            self._headers = {**super().headers(numbers), **next(self._forged)}
        return self._headers

    def answered(self, numbers: range, said: dict[str, Any]) -> float | None:
        if "error" in said or said.get("duplicate"):
            self.refused += 1
            self._headers = {"Nats-Msg-Id": f"{super().headers(numbers)['Nats-Msg-Id']}-honest"}
            return RETRY_SECONDS
        self.stored += 1
        return super().answered(numbers, said)

    def trace(self, _since: float) -> str | None:
        """What was seen of the forgery."""
        if not self.stored + self.refused:
            return None
        return f"{self.stored} messages were stored, {self.refused} refused or taken for repeats"

    def _ids(self) -> Iterator[Mapping[str, str]]:
        """The ids of the agent's next batches."""
        while True:
            run, number = "", 0
            with suppress(OSError, ValueError, KeyError, AssertionError):
                run = str(self._leaf.status()["run"])
                number = int(self._leaf.metric("petiole_stored_batches_total", **{"class": DEFAULT_CLASS}))
            for ahead in range(1, _AHEAD + 1):
                yield {"Nats-Msg-Id": f"{run}-{DEFAULT_CLASS}-{number + ahead}"} if run else {}
