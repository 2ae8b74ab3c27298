"""The `mqtt` input at a real broker, before a core that keeps what it is given in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.demo.loopback import LoopbackProxy, free_port
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate, session
from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint
from tests.harness.certificates import self_signed
from tests.harness.intakes import Burying
from tests.harness.mqtt_broker import Mosquitto, keep_session, kept_messages, publish
from tests.harness.wait import WAIT_SECONDS, until

CLIENT = "petiole-edge-1-mqtt"
TOPICS = [
    TopicTemplate(filter="plant/+/#", device="{2}", metric="{3+}"),
    TopicTemplate(filter="zigbee/+", metric=""),
]


class Core(Burying):
    """A core that is killed and begun again with what it has stored; `place` stands in for its position."""

    place: ResumePoint | None = None

    def __init__(self) -> None:
        super().__init__("mqtt")

    async def position(self, input_name: str) -> ResumePoint:
        return await super().position(input_name) if self.place is None else self.place

    def named(self) -> list[tuple[Any, ...]]:
        """Device, metric and value of all readings."""
        return [(row["device"], row["metric"], row["value"]) for row in self.rows()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    one = Mosquitto(tmp_path / "mosquitto", free_port())
    one.start()
    yield one
    one.stop()


@contextlib.asynccontextmanager
async def running(core: Core, port: int, **options: Any) -> AsyncIterator[Metrics]:
    """The input at the broker on a port; it is stopped with the context, and `core` opened."""
    metrics, stopping = Metrics(), asyncio.Event()
    given = {"url": f"mqtt://127.0.0.1:{port}", "topics": TOPICS, **options}
    one = MqttInput(MqttOptions(**given), metrics)
    assert problems([one]) == []
    task = asyncio.create_task(one.run(core, stopping))
    try:
        yield metrics
    finally:
        stopping.set()
        core.open.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await task


def send(port: int, *values: int) -> Any:
    return asyncio.to_thread(publish, port, "plant/p/n", *(str(value).encode() for value in values))


async def test_a_message_becomes_readings_or_a_dead_letter(broker: Mosquitto) -> None:
    core = Core()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "#")
    async with running(core, broker.port) as metrics:
        for topic, payload in (
            ("plant/pump.7/oil/temp", b"21.5"),
            ("plant/pump-7/state", b'{"value": "on", "device": "other"}'),
            ("zigbee/lamp", b'{"on": true, "power": {"now": 3, "max": null}}'),
            ("zigbee/lamp", b'{"apower": 12.5, "errors": ["overtemp"], "in": [{"rssi": -48}], "t": nan}'),
            ("plant/pump-7/x", b"no reading"),
            ("elsewhere", b"1"),
            ("zigbee/lamp", b"1"),
        ):
            await asyncio.to_thread(publish, broker.port, topic, payload)
        await asyncio.to_thread(publish, broker.port, "plant/q/zero", b"0", qos=0)
        await until(lambda: 0 in core.values() and len(core.letters) == 4, "all is taken")
        assert core.named() == [
            ("pump.7", "oil.temp", 21.5),
            ("other", "state", "on"),
            ("edge-1", "on", True),
            ("edge-1", "power_now", 3),
            ("edge-1", "apower", 12.5),
            ("q", "zero", 0),
        ]
        odd = core.letters.pop(0)
        assert odd.reason.endswith(": errors, in, t")
        assert odd.received.splitlines() == [
            b'{"metric":"errors","value":["overtemp"]}',
            b'{"metric":"in","value":[{"rssi": -48}]}',
            b'{"metric":"t","value":nan}',
        ]
        assert [(one.at, one.received) for one in core.letters] == [
            ("plant/pump-7/x", b"no reading"),
            ("elsewhere", b"1"),
            ("zigbee/lamp", b"1"),
        ]
        sample = metrics.registry.get_sample_value
        for reason, count in (("bad_message", 5), ("bad_topic", 1)):
            labels = {"input": "mqtt", "reason": reason}
            assert sample("petiole_invalid_requests_total", labels) == count


async def test_what_was_stored_and_not_acknowledged_is_stored_once(broker: Mosquitto) -> None:
    core, proxy = Core(), LoopbackProxy(broker.port)
    await proxy.start()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "plant/#")
    async with running(core, broker.port):
        await send(broker.port, 0)  # so that the numbers of the broker are seen to go on
        await until(lambda: core.values() == [0], "the first message is stored")
    core.open.clear()
    async with running(core, proxy.port):
        await send(broker.port, 1, 2)
        await until(lambda: core.waiting == 1, "a message is being stored")
        proxy.cut()
        core.open.set()
        await until(lambda: core.values()[:2] == [0, 1], "it is stored, and cannot be acknowledged")
        await send(broker.port, 3)
        proxy.restore()
        await until(lambda: core.values()[-1] == 3, "the broker has sent the rest")
        assert core.values() == [0, 1, 2, 3]
        # Another process knows as well: as if killed before its acknowledgements had left.
        core.open.clear()
        await send(broker.port, 4)
        await until(lambda: core.waiting == 1, "a message is being stored")
        proxy.cut()
        core.open.set()
        await until(lambda: core.values()[-1] == 4, "it is stored")
    await proxy.stop()
    async with running(core, broker.port):
        await send(broker.port, 5)
        await until(lambda: core.values()[-1] == 5, "the broker has sent the rest")
    assert core.values() == [0, 1, 2, 3, 4, 5]


async def test_the_first_message_of_a_session_may_be_stored_twice_and_is_never_dropped(
    broker: Mosquitto,
) -> None:
    """Its number is 1, as that of the first message over each connection to a broker that begins again."""
    core, proxy = Core(), LoopbackProxy(broker.port)
    await proxy.start()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "plant/#")
    core.open.clear()
    async with running(core, proxy.port):
        await send(broker.port, 1)
        await until(lambda: core.waiting == 1, "a message is being stored")
        proxy.cut()
        core.open.set()
        await until(lambda: core.values() == [1], "it is stored, and cannot be acknowledged")
        await send(broker.port, 2)
        proxy.restore()
        await until(lambda: core.values()[-1] == 2, "the broker has sent the rest")
    await proxy.stop()
    assert core.values() in ([1, 2], [1, 1, 2])


async def test_what_is_stored_while_the_input_stops_is_acknowledged_and_does_not_come_again(
    broker: Mosquitto,
) -> None:
    core = Core()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "plant/#")
    await send(broker.port, *range(60))
    core.open.clear()
    async with running(core, broker.port):
        await until(lambda: core.waiting == 1, "messages are being stored")
    stored = core.values()
    assert stored
    rest = await asyncio.to_thread(kept_messages, broker.port, CLIENT, 60 - len(stored))
    assert stored + rest == list(range(60))


async def test_a_piece_that_was_stored_in_part_is_handed_in_again_as_it_was(broker: Mosquitto) -> None:
    core = Core()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "plant/#")
    await send(broker.port, 1, 2, 3)
    core.open.clear()
    handed: list[Chunk] = []
    core.refuse = RefusedError(RefusalReason.FULL, "full", 30.0)
    submit = core.submit

    async def note(input_name: str, cls: str, chunk: Chunk) -> None:
        handed.append(chunk)
        await submit(input_name, cls, chunk)

    core.submit = note  # type: ignore[method-assign]
    async with running(core, broker.port):
        await until(lambda: core.waiting == 1, "a piece is being stored")
    core.refuse = None
    core.place = ResumePoint(None, handed[-1].position)
    async with running(core, broker.port):
        await until(lambda: len(core.values()) >= 3, "all is stored")
    again = core.stored[0]
    assert (again.position, again.count) == (handed[0].position, handed[0].count)
    assert core.values() == [1, 2, 3]


async def test_what_waits_here_is_bounded(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_WAITING", 3)
    waiting: list[int] = []
    message = session.Session._message

    def note(self: session.Session, *given: Any) -> None:
        message(self, *given)
        waiting.append(len(self._waiting))

    monkeypatch.setattr(session.Session, "_message", note)
    core = Core()
    await asyncio.to_thread(keep_session, broker.port, CLIENT, "plant/#")
    core.open.clear()
    await send(broker.port, *range(20))
    async with running(core, broker.port):
        await send(broker.port, *range(20, 40))
        await until(lambda: bool(waiting) and waiting[-1] == 3, "no more is read")
        core.open.set()
        await until(lambda: len(core.values()) == 40, "the rest comes when there is room")
    assert core.values() == list(range(40))
    assert max(waiting) == 3


# paho leaves a socket to the garbage collector when the handshake fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_is_trusted_by_its_certificate(tmp_path: Path) -> None:
    cert, key = await asyncio.to_thread(self_signed, tmp_path)
    lines = f"allow_anonymous true\ncertfile {cert}\nkeyfile {key}"
    broker = Mosquitto(tmp_path / "broker", free_port(), lines)
    broker.start()
    try:
        core, url = Core(), f"mqtts://127.0.0.1:{broker.port}"
        async with running(core, broker.port, url=url, tls_ca=cert) as metrics:
            labels = {"input": "mqtt"}
            await until(lambda: metrics.registry.get_sample_value("petiole_input_up", labels) == 1, "up")
            large = json.dumps("x" * 30_000).encode()
            await asyncio.to_thread(publish, broker.port, "plant/p/n", large, b"1", tls_ca=cert)
            await until(lambda: core.values() == ["x" * 30_000, 1], "it is stored")
        with capture_logs() as told:
            async with running(Core(), broker.port, url=url):
                await until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(told), "nobody signed it")
    finally:
        broker.stop()


async def test_a_broker_that_goes_away_and_comes_back_is_found_again(broker: Mosquitto) -> None:
    core = Core()
    async with running(core, broker.port) as metrics:

        def up() -> float | None:
            return metrics.registry.get_sample_value("petiole_input_up", {"input": "mqtt"})

        await until(lambda: up() == 1, "the broker is connected")
        await send(broker.port, 1)
        await until(lambda: core.values() == [1], "it is stored")
        await asyncio.to_thread(broker.stop)
        await until(lambda: up() == 0, "the input is down")
        await asyncio.to_thread(broker.start)
        await send(broker.port, 2)
        await until(lambda: core.values() == [1, 2], "the broker has kept the session")


async def test_a_broker_that_refuses_is_tried_again_and_told_why(tmp_path: Path) -> None:
    acl, secret = tmp_path / "acl", tmp_path / "secret"
    acl.write_text("user petiole\ntopic read plant/#\n")
    acl.chmod(0o600)
    secret.touch(0o600)
    secret.write_text("right\n")
    users = tmp_path / "users"
    users.touch(0o600)
    # mosquitto_passwd is of another package: the hash of "right", as that program writes it.
    users.write_text(f"petiole:{_hashed('right')}\n")
    broker = Mosquitto(tmp_path / "broker", free_port(), f"password_file {users}\nacl_file {acl}")
    broker.start()
    try:
        core = Core()
        own: dict[str, Any] = {"user": "petiole", "password_file": secret}
        async with running(core, broker.port, **own) as metrics:
            await until(
                lambda: metrics.registry.get_sample_value("petiole_input_up", {"input": "mqtt"}) == 1, "up"
            )
        secret.write_text("wrong\n")
        with capture_logs() as told:
            async with running(core, broker.port, **own):
                await until(lambda: "does not let us in" in str(told), "it is told")
    finally:
        broker.stop()


def _hashed(password: str) -> str:
    import base64
    import hashlib

    salt = b"0123456789ab"
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def test_options_that_cannot_work_are_told_at_once(tmp_path: Path) -> None:
    options = MqttOptions(
        url="http://x",
        topics=[TopicTemplate(filter="a#")],
        password_file=tmp_path / "none",
        tls_cert=tmp_path,
    )
    told = problems([MqttInput(options, Metrics())])
    for part in ("url", "filter", "cannot be read", "without user", "tls_key"):
        assert any(part in one for one in told), (part, told)
    assert (
        MqttInput(MqttOptions(url="mqtt://u:p@h", topics=[]), Metrics())
        .check()[0]
        .startswith("input 'mqtt': url has a user in it; write it as mqtt://<host>:1883")
    )
