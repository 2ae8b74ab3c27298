"""Devices that speak MQTT, as real clients of it, and a leaf whose server listens for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

WAIT_SECONDS = 20.0
USER, PASSWORD = "plant", 'se"cr\\et $1'


class Device:
    """One connection. `refused` is why it was not let in, None when it was."""

    def __init__(self, port: int, user: str, password: str, client_id: str, **options: Any) -> None:
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=mqtt.MQTTv311,
            reconnect_on_failure=False,
            **options,
        )
        self._client.username_pw_set(user, password)
        self._answered, self._over = threading.Event(), threading.Event()
        self.refused: str | None = "nobody answered"
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._ended
        self._client.connect("127.0.0.1", port, keepalive=30)
        self._client.loop_start()
        self._answered.wait(WAIT_SECONDS)

    def _connected(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self.refused = str(reason) if reason.is_failure else None
        self._answered.set()

    def _ended(self, *_: Any) -> None:
        self._over.set()
        self._answered.set()

    def publish(self, topic: str, payload: str | bytes, qos: int = 1, **options: Any) -> bool:
        """Publish, and say whether the server answered (QoS 1 and 2) or it was sent (QoS 0) before it closed
        the connection."""
        if self._over.is_set():
            return False
        sent = self._client.publish(topic, payload, qos, **options)
        if sent.rc == mqtt.MQTT_ERR_NO_CONN:  # closed before this program was told
            return False
        for _ in range(int(WAIT_SECONDS / 0.02)):
            if sent.is_published():
                return True
            if self._over.wait(0.02):
                return sent.is_published()
        return False

    def subscribe(self, topic: str) -> list[int]:
        """What the server grants: QoS levels, 128 for a refusal."""
        granted: list[int] = []
        done = threading.Event()

        def told(_client: Any, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
            granted.extend(reason.value for reason in reasons)
            done.set()

        self._client.on_subscribe = told
        self._client.subscribe(topic, 1)
        assert done.wait(WAIT_SECONDS), "no answer to a subscription"
        return granted

    def close(self) -> None:
        """End in good order."""
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def device(
    port: int, user: str = "plant", password: str = "secret", client_id: str = "pump-7", **options: Any
) -> Iterator[Device]:
    """A device that is closed with the context."""
    one = Device(port, user, password, client_id, **options)
    try:
        yield one
    finally:
        one.close()


class Listening(NamedTuple):
    """A leaf whose server listens for MQTT devices on `port`."""

    leaf: Agent
    port: int

    def start(self) -> None:
        """Run the agent; returns when devices are let in."""
        self.leaf.start()
        wait_for(self._lets_in, "devices are let in")

    def _lets_in(self) -> bool:
        with device(self.port, USER, PASSWORD, "first") as one:
            return one.refused is None


@contextmanager
def listening(
    directory: Path, stream: str = 'max_bytes = "512MiB"', hub_port: int | None = None
) -> Iterator[Listening]:
    """One that is not started yet, without inputs; `stream` is how large its stream may become, `hub_port`
    where its hub listens for leaves."""
    member, port = plan.member(directory, "edge-1"), free_port()
    secret = directory / "plant.password"
    secret.touch(0o600)
    secret.write_text(PASSWORD + "\n")
    whole = plan.leaf_toml(member, hub_port or free_port())
    base = whole.partition("[[input]]")[0].replace('max_bytes = "512MiB"', stream)
    toml = f"""{base}
[nats.mqtt]
listen = "127.0.0.1:{port}"
[[nats.mqtt.users]]
name = "{USER}"
password_file = {json.dumps(str(secret))}
"""
    agent = Agent(member, toml)
    try:
        yield Listening(agent, port)
    finally:
        agent.close()
