"""A real broker of MQTT, mosquitto, which runs beside an agent."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from agent.demo.loopback import free_port
from agent.demo.plan import Member
from tests.harness.wait import wait_for

WAIT_SECONDS = 45.0
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_PORTS: dict[Path, int] = {}


def broker_port(member: Member) -> int:
    """The port of the broker that belongs to an agent."""
    return _PORTS.setdefault(member.directory, free_port())


class Mosquitto:
    """One broker. What it keeps survives a `stop` and a new `start`."""

    def __init__(self, directory: Path, port: int, lines: str = "allow_anonymous true") -> None:
        self.port = port
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "mosquitto.conf"
        self._config.write_text(
            f"persistence true\npersistence_location {directory}/\nuser root\n"
            f"listener {port} 127.0.0.1\nmax_queued_messages 0\n{lines}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it; returns when it listens."""
        program = _program()
        with (self._directory / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", self._config], stdout=log, stderr=log)
        wait_for(self._listens, "the broker listens")

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0


def _program() -> str:
    found = shutil.which("mosquitto") or next(
        (path for place in _PLACES if (path := shutil.which("mosquitto", path=place))), None
    )
    if found is None:
        pytest.skip("mosquitto is missing; install it with: apt-get install mosquitto")
    return found


@contextmanager
def broker_beside(
    member: Member, input_name: str = "mqtt", filter_: str = "plant/+/#", first: str = "plant/d/first"
) -> Iterator[Mosquitto]:
    """The broker that belongs to an agent, which keeps messages for its input before it has come for the
    first time."""
    broker = Mosquitto(member.directory / "mosquitto", broker_port(member))
    broker.start()
    try:
        keep_session(broker.port, f"petiole-{member.domain}-{input_name}", filter_, first)
        yield broker
    finally:
        broker.stop()


def keep_session(port: int, client_id: str, filter_: str, first: str | None = None) -> None:
    """Make the session of a client that subscribes to a filter with QoS 1. With a topic, its first message is
    one on that, which it acknowledges: whether a message has the number 1 of its session or of a connection
    is not known, so an input may store one of that number twice (docs/inputs/mqtt.md)."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
    subscribed, came = threading.Event(), threading.Event()

    def subscribe(*_: object) -> None:
        client.subscribe(filter_, 1)

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda *_: came.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert subscribed.wait(WAIT_SECONDS), "the broker does not answer"
    if first is not None:
        publish(port, first, b"")
        assert came.wait(WAIT_SECONDS), "the first message does not come"
    client.disconnect()
    client.loop_stop()


def kept_messages(port: int, client_id: str, count: int) -> list[Any]:
    """The first `count` messages that the broker keeps for a client, as JSON values, in order."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
    values: list[Any] = []
    client.on_message = lambda _client, _data, message: values.append(json.loads(message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_for(lambda: len(values) >= count, f"{count} messages come")
    client.disconnect()
    client.loop_stop()
    return values[:count]


def publish(
    port: int, topic: str, *payloads: bytes, qos: int = 1, tls_ca: Path | None = None, retain: bool = False
) -> None:
    """Publish as some device; returns when the broker has all of it."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    if tls_ca is not None:
        client.tls_set(str(tls_ca))
    client.connect("127.0.0.1", port)
    client.loop_start()
    for payload in payloads:
        client.publish(topic, payload, qos, retain).wait_for_publish(WAIT_SECONDS)
    client.disconnect()
    client.loop_stop()
