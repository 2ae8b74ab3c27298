"""RabbitMQ, a broker that numbers packets from 1 on each connection, with payloads that repeat."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo import plan
from agent.demo.loopback import LoopbackProxy, free_port
from agent.leaf.inputs.mqtt import TopicTemplate
from agent.leaf.intake import RefusalReason, RefusedError
from agent.testing.stored_stream import numbers_in
from tests.e2e.test_mqtt_input import Core, running
from tests.faults.report import Case
from tests.harness.agent_process import Agent
from tests.harness.mqtt_broker import keep_session, publish
from tests.harness.wait import until, wait_for

START_SECONDS = 120.0
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{amqp}
mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}
mqtt.allow_anonymous = true
mqtt.prefetch = {prefetch}
log.console = true
log.file = false
"""


class RabbitMQ:
    """One broker, with its own ports and directories. What it keeps survives a `kill` and a new `start`."""

    def __init__(self, directory: Path, prefetch: int = 10) -> None:
        if not _SERVER.exists():
            pytest.skip("RabbitMQ is missing; install it with: apt-get install rabbitmq-server")
        self.port, self._directory = free_port(), directory
        self._epmd_port, amqp = free_port(), free_port()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rabbitmq.conf").write_text(_CONFIG.format(amqp=amqp, mqtt=self.port, prefetch=prefetch))
        (directory / "plugins").write_text("[rabbitmq_mqtt].\n")
        (directory / "env").touch()
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "env"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_NODENAME": f"petiole{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(amqp),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Run it; returns when it listens for MQTT."""
        epmd = shutil.which("epmd")
        assert epmd is not None, "epmd comes with Erlang"
        for command in ([epmd], [str(_SERVER)]):
            with (self._directory / "rabbitmq.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=log, env=self._environment, start_new_session=True
                    )
                )
        self._wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), with all that it has started."""
        while self._processes:
            process = self._processes.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self) -> None:
        """An Erlang machine takes longer to start than what else is waited for."""
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            log = self._directory / "rabbitmq.log"
            assert self._processes[-1].poll() is None, f"the broker ended; see {log}"
            assert time.monotonic() < deadline, f"the broker does not listen; see {log}"
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0


pytestmark = pytest.mark.timeout(600)
STORED, UNDER_WAY = 20, 5
FAULTS = ("the link breaks", "the input ends", "the broker is killed")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RabbitMQ]:
    """One with a connection for devices, and directories of its own."""
    one = RabbitMQ(tmp_path / "rabbitmq")
    try:
        one.start()
        yield one
    finally:
        one.kill()


async def zeros(broker: RabbitMQ, fault: str, count: int) -> None:
    await asyncio.to_thread(publish, broker.port, f"plant/{fault}/n", *[b"0"] * count)


async def test_a_message_that_comes_again_under_a_number_of_the_connection_before_is_stored(
    broker: RabbitMQ, case: Case
) -> None:
    case.expected = "what was under way at a fault is stored, though number and payload are known as stored"
    for fault in FAULTS:
        doubled = await struck(broker, fault, case)
        case.saw(f"{fault}: {doubled} of {STORED + UNDER_WAY} are stored twice")


async def struck(broker: RabbitMQ, fault: str, case: Case) -> int:
    """How many messages are stored twice when that happens while some are under way."""
    core, proxy = Core(), LoopbackProxy(broker.port)
    await proxy.start()
    name = fault.replace(" ", "-")
    options = {"client_id": name, "topics": [TopicTemplate(filter=f"plant/{name}/#", device="d", metric="n")]}
    await asyncio.to_thread(keep_session, broker.port, name, f"plant/{name}/#")
    try:
        async with running(core, proxy.port, **options):
            await zeros(broker, name, STORED)
            await until(lambda: len(core.values()) == STORED, "the first are stored")
            core.open.clear()
            await zeros(broker, name, UNDER_WAY)
            await until(lambda: core.waiting == 1, "more is under way")
            case.begins()
            if fault == "the link breaks":
                proxy.cut()
                core.open.set()
                proxy.restore()
            elif fault == "the broker is killed":
                await asyncio.to_thread(broker.kill)
                core.open.set()
                await asyncio.to_thread(broker.start)
            else:
                core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 0.05)
        core.refuse = None
        whole = STORED + UNDER_WAY
        async with running(core, proxy.port, **options):
            await until(lambda: len(core.values()) >= whole, f"nothing is lost when {fault}")
    finally:
        await proxy.stop()
    return len(core.values()) - whole


def test_an_agent_that_is_killed_while_its_stream_is_full_stores_what_the_broker_sends_again(
    broker: RabbitMQ, tmp_path: Path, case: Case
) -> None:
    case.expected = "all that the broker had kept is stored, though its numbers and payloads are known"
    member = plan.member(tmp_path, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    topics = '[{ filter = "plant/+/#", device = "{2}", metric = "{3+}" }]'
    whole = f'{base}[[input]]\ntype = "mqtt"\nurl = "mqtt://127.0.0.1:{broker.port}"\ntopics = {topics}\n'
    leaf, count = Agent(member, whole.replace('"512MiB"', '"16KiB"')), 400
    try:
        keep_session(broker.port, "petiole-edge-1-mqtt", "plant/+/#")
        publish(broker.port, "plant/d/n", *[b"0"] * count)
        leaf.start()
        refused = {"input": "mqtt", "reason": "stream_full"}
        wait_for(lambda: leaf.metric("petiole_refused_readings_total", **refused) > 0, "the stream is full")
        before = numbers_in(leaf.member)[0]
        leaf.end(signal.SIGKILL)
        case.begins()
        leaf.member.config.write_text(whole)
        leaf.start()
        wait_for(lambda: numbers_in(leaf.member)[0] >= count, "all are stored")
        case.sent = case.acknowledged = count
        case.lost, case.duplicates = 0, numbers_in(leaf.member)[0] - count
        case.saw(
            f"{before} of {count} were stored when it was killed, and {case.duplicates} are stored twice"
        )
    finally:
        leaf.close()
