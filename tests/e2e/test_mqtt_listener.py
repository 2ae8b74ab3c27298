"""MQTT devices at a leaf's own server, with `petiole run` in a process of its own."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent import contract
from agent.demo.loopback import free_port
from agent.jetstream import RawMessage
from agent.testing.stored_stream import lines_of
from tests.harness.agent_process import Agent
from tests.harness.agents import StreamProbe, ask_stream
from tests.harness.certificates import self_signed
from tests.harness.mqtt_broker import Mosquitto, publish
from tests.harness.mqtt_client import PASSWORD, USER, Listening, device, listening
from tests.harness.wait import wait_for

T = TypeVar("T")


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """One that runs, for tests that leave it running."""
    with listening(tmp_path_factory.mktemp("plant")) as one:
        one.start()
        yield one


def messages(leaf: Agent) -> list[RawMessage]:
    """All that the leaf's stream holds."""
    return ask_stream(leaf.member, StreamProbe.messages)


def direct(leaf: Agent, device: str) -> list[tuple[str, bytes]]:
    """Metric and payload of what a device has stored."""
    prefix = f"tel.edge-1.normal.{device}."
    found = [one for one in messages(leaf) if one.subject.startswith(prefix)]
    return [(one.subject.removeprefix(prefix), one.data) for one in found]


def batched(leaf: Agent, device: str) -> list[tuple[str, object]]:
    """Metric and value of what the agent has stored of a device's QoS 0."""
    subject = contract.batch_subject("edge-1", "normal", contract.QOS0_INPUT)
    batches = [message for message in messages(leaf) if message.subject == subject]
    rows = [json.loads(line) for message in batches for line in lines_of(message)]
    return [(row["metric"], row["value"]) for row in rows if row["device"] == device]


def test_a_device_is_answered_when_its_reading_is_stored_also_while_the_agent_is_dead(
    plant: Listening,
) -> None:
    leaf, port = plant
    with device(port, USER, PASSWORD) as one:
        for qos, value in ((1, b"21.5"), (2, b"22.5")):
            assert one.publish("readings/normal/pump-7/pressure", value, qos)
            assert direct(leaf, "pump-7")[-1] == ("pressure", value)
        assert leaf.end(signal.SIGKILL) == -signal.SIGKILL
        assert one.publish("readings/normal/pump-7/pressure", b"23.5", retain=True)
        assert direct(leaf, "pump-7")[2:] == [("pressure", b"23.5")]
    plant.start()
    assert len(direct(leaf, "pump-7")) == 3
    assert batched(leaf, "pump-7") == []


def test_what_comes_with_qos_0_is_batched_by_the_agent_or_counted(plant: Listening) -> None:
    leaf, port = plant
    invalid = {
        reason: leaf.metric("petiole_invalid_requests_total", input="qos0", reason=reason)
        for reason in ("bad_message", "bad_topic")
    }
    with device(port, USER, PASSWORD) as one:
        for topic, payload in (
            ("readings/normal/pump.8/in.side", '{"value": 1, "tags": {"a": "b"}}'),
            ("readings/normal/pump.8/in.side", "no reading"),
            ("readings/normal/pump.8/in.side", '{"value": 1, "ts": -1}'),
            ("readings/other/pump.8/in.side", "1"),
            ("readings/normal/_foo/x", "1"),
            ("readings/normal/pump.8/in.side", "2"),
        ):
            assert one.publish(topic, payload, qos=0)
    wait_for(lambda: batched(leaf, "pump.8") == [("in.side", 1), ("in.side", 2)], "QoS 0 is stored")
    for reason, count in (("bad_message", 2), ("bad_topic", 2)):
        now = leaf.metric("petiole_invalid_requests_total", input="qos0", reason=reason)
        assert now == invalid[reason] + count
    assert batched(leaf, "_foo") == [], "with QoS 1 the hub refuses it, too"
    subject = contract.dead_subject("edge-1", "normal", contract.QOS0_INPUT)
    wait_for(
        lambda: (
            sum(int(one.headers[contract.H_COUNT]) for one in messages(leaf) if one.subject == subject) == 4
        ),
        "what could not be taken is kept as dead letters",
    )


def test_devices_may_publish_readings_with_the_right_password_and_nothing_else(plant: Listening) -> None:
    leaf, port = plant
    rendered = leaf.member.state / "nats"
    assert PASSWORD not in (rendered / "nats-server.conf").read_text()
    assert (rendered / "mqtt-0.conf").stat().st_mode & 0o777 == 0o600
    for user, password in ((USER, "wrong"), ("nobody", PASSWORD)):
        with device(port, user, password) as one:
            assert one.refused is not None
    with device(port, USER, PASSWORD) as one:
        assert one.subscribe("readings/#") == [128]
        before = {found.seq for found in messages(leaf)}
        for topic in (
            "tel/edge-1/normal/d/m",
            "tel/edge-1/normal/_ledger",
            "readings/normal/_batch/http",
            "readings/normal/_dead/http",
            "cmd/edge-1/agent/ping",
            "$JS/API/STREAM/PURGE/TEL_edge-1_normal",
        ):
            one.publish(topic, "1")
        assert one.publish("readings/normal/d/m", "1")
    after = [found for found in messages(leaf) if found.seq not in before]
    assert [found.subject for found in after if not found.subject.endswith("._ledger")] == [
        "tel.edge-1.normal.d.m"
    ]
    assert before <= {found.seq for found in messages(leaf)}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_that_no_device_may_use_is_named_in_the_servers_log_with_every_qos(
    plant: Listening, qos: int
) -> None:
    leaf, port = plant
    log = leaf.member.state / "nats" / "nats-server.log"
    before = len(log.read_text())
    bad_topics = leaf.metric("petiole_invalid_requests_total", input="qos0", reason="bad_topic")
    subjects = [f"plant.pump-{qos}.bar", "readings.normal._batch.http", "readings.normal._dead.http"]
    with device(port, USER, PASSWORD) as one:
        for subject in subjects:
            assert one.publish(subject.replace(".", "/"), "1", qos)
    named = [f'Publish Violation - Subject "{subject}"' for subject in subjects]
    wait_for(
        lambda: all(line in log.read_text()[before:] for line in named), "the server's log names the subjects"
    )
    assert leaf.metric("petiole_invalid_requests_total", input="qos0", reason="bad_topic") == bad_topics
    assert not any(message.subject.endswith((".bar", ".http")) for message in messages(leaf))


def test_mosquitto_s_own_client_is_served(plant: Listening) -> None:
    client = shutil.which("mosquitto_pub")
    if client is None:
        pytest.skip("mosquitto_pub is missing; install it with: apt-get install mosquitto-clients")
    leaf, port = plant
    for qos, value in enumerate(("10", "11", '"on"')):
        subprocess.run(
            [
                *(client, "-p", str(port), "-u", USER, "-P", PASSWORD, "-q", str(qos)),
                *("-t", "readings/normal/pump-9/state", "-m", value),
            ],
            check=True,
            timeout=20,
        )
    assert direct(leaf, "pump-9") == [("state", b"11"), ("state", b'"on"')]
    wait_for(lambda: batched(leaf, "pump-9") == [("state", 10)], "QoS 0 is stored")


def test_a_bridge_of_mosquitto_needs_the_documented_lines(plant: Listening, tmp_path: Path) -> None:
    leaf, port = plant
    document = (Path(__file__).parents[2] / "docs" / "inputs" / "mqtt.md").read_text()
    lines = document.partition("connection leaf")[1:]
    text = "".join(lines).partition("```")[0]
    text = text.replace("edge-1:1883", f"127.0.0.1:{port}").replace(
        "remote_password …", f"remote_password {PASSWORD}"
    )
    broker = Mosquitto(tmp_path, free_port(), f"allow_anonymous true\n{text}")
    broker.start()
    try:
        publish(broker.port, "plant/pump-10/pressure", b"21.5")
        wait_for(lambda: direct(leaf, "pump-10") == [("pressure", b"21.5")], "it is stored")
    finally:
        broker.stop()


def test_a_device_is_not_answered_while_the_stream_is_full(tmp_path: Path) -> None:
    with listening(tmp_path, 'max_bytes = "16KiB"') as plant:
        leaf, port = plant
        plant.start()
        noise = [random.Random(number).randbytes(2000).hex() for number in range(6)]
        with device(port, USER, PASSWORD) as one:
            answers = [one.publish("readings/normal/d/m", json.dumps(text)) for text in noise]
        assert answers[0]
        assert not answers[-1], "its connection is closed instead"
        assert [data.decode().strip('"') for _, data in direct(leaf, "d")] == noise[: sum(answers)]
        ask_stream(leaf.member, lambda probe: probe.js.purge(probe.stream, 3))
        with device(port, USER, PASSWORD) as one:
            assert one.publish("readings/normal/d/m", "1")


def devices(leaf: Agent) -> dict[str, Any]:
    """What the agent says of MQTT devices; a server that it has just begun with was not looked at yet."""
    found: dict[str, Any] = leaf.status()["server"].get("devices", {"problems": [], "refused": {}})
    return found


def test_what_devices_are_refused_is_counted_also_while_no_agent_runs(tmp_path: Path) -> None:
    def refused(reason: str) -> int:
        return int(devices(leaf)["refused"].get(reason, 0))

    with listening(tmp_path) as plant:
        leaf, port = plant
        plant.start()
        before = refused("password")
        with device(port, USER, PASSWORD, "bridge") as one:
            assert one.publish("plant/pump.7", "1"), "it gets a PUBACK"
            assert one.publish("readings/normal/_batch/m", "1", qos=2)
            one.publish("plant/zero", "1", qos=0)
            assert one.subscribe("readings/#") == [128]
        with device(port, USER, "wrong") as one:
            assert one.refused
        with device(port, USER, PASSWORD, "vm.leaf") as one:
            assert one.refused
        wait_for(lambda: refused("client_id") == 1, "all is read")
        assert [refused(reason) for reason in ("publish", "subscribe", "client_id")] == [3, 1, 1]
        assert refused("password") > before
        assert leaf.metric("petiole_mqtt_refusals_total", reason="publish") == 3
        leaf.end(signal.SIGKILL)
        with device(port, USER, PASSWORD, "bridge") as one:
            assert one.publish("plant/pump.7", "1")
        leaf.start()
        wait_for(lambda: refused("publish") == 4, "what was refused meanwhile is counted")
        for command in ("status", "check"):
            said = " ".join(leaf.petiole(command).stdout.split())
            assert "publish 4" in said
            assert 'last publish "plant/pump.7" of client "bridge"' in said


def _bad_password(leaf: Agent, port: int) -> Callable[[], None]:
    secret = leaf.member.directory.parent / "plant.password"
    secret.chmod(0o644)
    return lambda: secret.chmod(0o600)


def _taken_port(leaf: Agent, port: int) -> Callable[[], None]:
    taken = socket.create_server(("127.0.0.1", port))
    return taken.close


def _bad_certificate(leaf: Agent, port: int) -> Callable[[], None]:
    directory = leaf.member.directory.parent
    cert, key = directory / "mqtt.crt", directory / "mqtt.key"
    cert.write_text("no certificate")
    toml = leaf.member.config.read_text()
    tls = f'[nats.mqtt]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    leaf.member.config.write_text(toml.replace("[nats.mqtt]\n", tls))

    def mend() -> None:
        for made, place in zip(self_signed(leaf.member.directory), (cert, key), strict=True):
            shutil.copy(made, place)

    return mend


@pytest.mark.parametrize("hinder", [_bad_password, _taken_port, _bad_certificate])
def test_what_keeps_devices_out_keeps_nothing_else_out_and_ends_without_a_restart(
    tmp_path: Path, hinder: Callable[[Agent, int], Callable[[], None]]
) -> None:
    with listening(tmp_path) as plant:
        leaf, port = plant
        mend = hinder(leaf, port)
        try:
            leaf.start()
            wait_for(lambda: bool(devices(leaf)["problems"]), "the agent says why")
            assert leaf.metric("petiole_mqtt_listener_up") == 0
            assert "MQTT" in leaf.petiole("status").stdout
            assert leaf.petiole("check").returncode != 0
        finally:
            mend()
        wait_for(lambda: leaf.metric("petiole_mqtt_listener_up") == 1, "devices are let in")
        assert not devices(leaf)["problems"]
