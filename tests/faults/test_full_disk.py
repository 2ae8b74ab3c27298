"""A disk that becomes full under a server of ours, and is freed again: nothing that was acknowledged is lost,
and all goes on without help."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.errors import Error as NatsError

from agent import contract
from agent.contract import inbox_prefix
from agent.demo import plan
from agent.demo.ports import free_port
from tests.faults.report import Case
from tests.faults.tools.disk import SmallDisk, small_disk
from tests.faults.tools.wire import missing
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no disk can be mounted: {missing()}")

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
STREAM = contract.leaf_stream("edge-1", "normal")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 32 MiB for a server's store."""
    with small_disk(tmp_path / "disk", 32) as one:
        yield one


@pytest.fixture
def leaf(tmp_path: Path, disk: SmallDisk) -> Iterator[Agent]:
    """A leaf whose store is on the small disk and whose hub does not run."""
    member = plan.member(tmp_path, "edge-1")
    toml = plan.leaf_toml(member, free_port())
    agent = Agent(member, toml.replace("[nats]", f'[nats]\nstore_dir = "{disk.path / "store"}"'))
    yield agent
    disk.free()
    agent.close()


def state_of(agent: Agent) -> str:
    return str(agent.status()["server"]["state"])


def answer_of(agent: Agent) -> tuple[int, str]:
    """What becomes of one reading: the code and the words."""
    request = urllib.request.Request(
        f"{agent.member.http_url}/v1/readings", READING, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


async def publish(leaf: Agent, bytes_: int) -> int:
    """Publish so many bytes that don't compress as a device of the leaf, less when the server answers no
    more; returns the last sequence that it acknowledged."""
    device = await nats.connect(
        leaf.member.nats_url,
        nkeys_seed=str(leaf.member.state / "keys" / "device.nk"),
        inbox_prefix=inbox_prefix("device"),
    )
    last = 0
    with contextlib.suppress(NatsError):
        for _ in range(bytes_ // 20_000):
            value = json.dumps({"value": secrets.token_urlsafe(15_000)}).encode()
            acked = await device.request("tel.edge-1.normal.d.m", value, timeout=1)
            last = json.loads(acked.data)["seq"]
    await device.close()
    return last


def test_a_disk_that_becomes_full_refuses_readings_in_time_and_takes_them_again_when_it_is_freed(
    leaf: Agent, disk: SmallDisk, case: Case
) -> None:
    case.expected = "503 with the reason while the disk is full; the server is not started anew"
    leaf.start()
    server = leaf.server()
    case.begins()
    room = disk.room()
    disk.fill(but=2**20)
    assert disk.room() < room
    wait_for(lambda: "of it are kept free" in state_of(leaf), "the agent names the full disk")
    case.detect_seconds = case.saw(state_of(leaf))
    code, words = answer_of(leaf)
    assert code == 503
    assert "free some room" in words
    assert leaf.status_of("/readyz") == 503
    case.begins()
    disk.free()
    wait_for(lambda: answer_of(leaf)[0] == 204, "readings are taken again")
    case.recover_seconds = case.saw("204")
    assert leaf.server() == server


def test_a_server_that_stopped_writing_on_a_full_disk_is_started_anew_once_there_is_room(
    leaf: Agent, disk: SmallDisk, case: Case
) -> None:
    case.expected = "503 with the reason; a new start as soon as there is room; nothing acknowledged is lost"
    leaf.start()
    server = leaf.server()
    assert leaf.post(READING, "a-1") == 204
    disk.fill(but=2**20)
    case.begins()
    last = asyncio.run(publish(leaf, 8 * 2**20))
    assert last > 10
    wait_for(lambda: f"stopped writing to {STREAM}" in state_of(leaf), "the agent names the fault")
    case.detect_seconds = case.saw(state_of(leaf))
    code, words = answer_of(leaf)
    assert code == 503
    assert "no space left on device" in words
    assert "started anew as soon as there is room" in words
    assert leaf.server() == server, "it is not started anew in vain"
    case.begins()
    disk.free()
    wait_for(lambda: leaf.server() not in (None, server), "the server is started anew")
    wait_for(lambda: answer_of(leaf)[0] == 204, "readings are taken again")
    case.recover_seconds = case.saw("204")
    wait_for(lambda: leaf.status()["classes"]["normal"]["last"] > last, "the stream goes on where it was")
    assert leaf.status_of("/readyz") == 200


def test_a_disk_that_others_fill_gets_back_what_the_hub_has_confirmed(
    tmp_path: Path, leaf: Agent, disk: SmallDisk, case: Case
) -> None:
    case.expected = "the stream is trimmed though it is far from full, and readings are taken again"
    hub_member, leaf_port = plan.member(tmp_path, "hub"), free_port()
    text = leaf.member.config.read_text()
    leaf.member.config.write_text(
        re.sub(r"nats-leaf://127.0.0.1:[0-9]+", f"nats-leaf://127.0.0.1:{leaf_port}", text)
    )
    hub = Agent(hub_member, plan.hub_toml(hub_member, leaf_port, [leaf.petiole("enrol").stdout]))
    with contextlib.ExitStack() as stack:
        stack.callback(hub.close)
        hub.start()
        leaf.start()
        last = asyncio.run(publish(leaf, 12 * 2**20))
        wait_for(lambda: leaf.status()["classes"]["normal"]["confirmed"] >= last, "all is at the hub")
        case.begins()
        disk.fill(but=2**20)
        wait_for(lambda: disk.room() > 8 * 2**20, "what the hub holds is trimmed here")
        wait_for(lambda: answer_of(leaf)[0] == 204, "readings are taken")
        case.recover_seconds = case.saw("trimmed and 204")


def test_the_hub_s_disk_becomes_full_and_is_freed_and_the_leaf_s_readings_arrive(
    tmp_path: Path, disk: SmallDisk, case: Case
) -> None:
    case.expected = "the hub's agent names it and starts its server anew; all that leaves had stored arrives"
    leaf_member, hub_member, leaf_port = (
        plan.member(tmp_path, "edge-1"),
        plan.member(tmp_path, "hub"),
        free_port(),
    )
    leaf = Agent(leaf_member, plan.leaf_toml(leaf_member, leaf_port))
    toml = plan.hub_toml(hub_member, leaf_port, [leaf.petiole("enrol").stdout])
    hub = Agent(hub_member, toml.replace("[nats]", f'[nats]\nstore_dir = "{disk.path / "store"}"'))
    with contextlib.ExitStack() as stack:
        for one in (leaf, hub):
            stack.callback(one.close)
        stack.callback(disk.free)
        hub.start()
        leaf.start()
        wait_for(lambda: leaf.status()["classes"]["normal"]["confirmed"] > 0, "the hub confirms")
        disk.fill(but=2**20)
        case.begins()
        last = asyncio.run(publish(leaf, 8 * 2**20))
        wait_for(
            lambda: "JetStream has shut itself down: its disk is full" in state_of(hub),
            "the hub's agent names the fault",
        )
        case.detect_seconds = case.saw(state_of(hub))
        assert leaf.post(READING, "a-2") == 204, "the leaf goes on storing"
        case.begins()
        disk.free()
        wait_for(lambda: leaf.status()["classes"]["normal"]["confirmed"] > last, "all is at the hub")
        case.recover_seconds = case.saw("confirmed")
        assert hub.status_of("/readyz") == 200
