"""What of a session is handed in again after a kill, without a broker."""

from __future__ import annotations

import asyncio
import json
from collections import deque

from agent.base.metrics import Metrics
from agent.contract import MAX_BATCH_READINGS
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.inputs.mqtt.redelivery import Redelivery
from agent.leaf.inputs.mqtt.session import Received
from agent.leaf.inputs.mqtt.sorter import identity
from agent.leaf.intake import ResumePoint
from tests.harness.intakes import Burying
from tests.harness.wait import until

MEMBERS = 400
TOPIC = TopicTemplate(filter="plant/+", device="{2}", metric="")


def message(number: int, *, qos: int = 1, members: int = MEMBERS, repeat: bool = True) -> Received:
    """A message of many readings; those with QoS 1 were sent before."""
    payload = json.dumps({f"m{member}": number for member in range(members)}).encode()
    return Received("plant/p", payload, qos, 0 if not qos else number, repeat and qos > 0)


class Redelivering:
    """The session of a broker that sends these messages, and then perhaps `ends` the connection."""

    resumed = True

    def __init__(self, messages: list[Received], *, ends: bool) -> None:
        self._messages, self._ends = deque(messages), ends
        self.over: str | None = None
        self.acknowledged: list[int] = []

    async def next(self, count: int, most_bytes: int, due: float | None = None) -> list[Received]:
        if not self._messages:
            if not self._ends:
                await asyncio.Event().wait()
            self.over = "it is cut"
        return [self._messages.popleft() for _ in range(min(count, len(self._messages)))]

    def acknowledge(self, message: Received) -> bool:
        if message.qos:
            self.acknowledged.append(message.packet_id)
        return bool(message.qos)


class Killed(Burying):
    """A core that has a piece begun."""

    def __init__(self, place: ResumePoint) -> None:
        super().__init__("mqtt")
        self.place = place

    async def position(self, input_name: str) -> ResumePoint:
        return self.place


async def handed_in_again(stored: list[Received], begun: list[Received], *sent: list[Received]) -> Killed:
    """The core after an agent that was killed with these messages `stored`, and others `begun`, was sent
    messages over one connection after the other, until all of the latter were acknowledged."""
    before = Redelivery()
    position = before.position("0" * 8, [identity(each) for each in stored], 0.0)
    until_ = Redelivery().position("1" * 8, [identity(each) for each in begun], 0.0)
    core, stopping = Killed(ResumePoint(position, until_)), asyncio.Event()
    input_ = MqttInput(MqttOptions(url="mqtt://127.0.0.1:1", topics=[TOPIC]), Metrics())
    input_._intake, input_._stopping = core, stopping
    await input_._restore()
    for messages in sent[:-1]:
        input_._redelivery.connected(0.0, resumed=True)
        assert await input_._pump(Redelivering(messages, ends=True)) == "it is cut"  # type: ignore[arg-type]
    input_._redelivery.connected(0.0, resumed=True)
    session = Redelivering(sent[-1], ends=False)
    pumping = asyncio.create_task(input_._pump(session))  # type: ignore[arg-type]
    last = begun[-1].packet_id
    await until(lambda: last in session.acknowledged or pumping.done(), "all of the piece is acknowledged")
    stopping.set()
    await pumping
    return core


async def test_a_piece_is_handed_in_again_as_it_was_behind_messages_that_are_stored() -> None:
    stored = [message(number) for number in range(10, 20)]
    begun = [message(number) for number in range(20, 32)]
    assert len(begun) * MEMBERS < MAX_BATCH_READINGS < (len(stored) + len(begun)) * MEMBERS
    core = await handed_in_again(stored, begun, [*stored, *begun])
    (chunk,) = core.stored
    assert (chunk.count, chunk.position) == (len(begun) * MEMBERS, core.place.until)


async def test_a_piece_is_handed_in_again_as_it_was_though_devices_send_with_qos_0_meanwhile() -> None:
    stored, begun = [message(10)], [message(number) for number in range(20, 24)]
    live = message(5, qos=0)
    core = await handed_in_again(stored, begun, [*stored, begun[0], live, *begun[1:]])
    pieces = [chunk for chunk in core.stored if chunk.position is not None]
    assert [(chunk.count, chunk.position) for chunk in pieces] == [(len(begun) * MEMBERS, core.place.until)]
    assert core.values().count(5) == MEMBERS


async def test_a_piece_is_handed_in_again_as_it_was_though_the_connection_is_cut_meanwhile() -> None:
    stored, begun = [message(10)], [message(number) for number in range(20, 24)]
    live = message(5, qos=0)
    core = await handed_in_again(stored, begun, [*stored, live, *begun[:2]], [*stored, *begun])
    pieces = [chunk for chunk in core.stored if chunk.position is not None]
    assert [(chunk.count, chunk.position) for chunk in pieces] == [(len(begun) * MEMBERS, core.place.until)]
    assert core.values().count(5) == MEMBERS, "what comes with QoS 0 does not come again"


async def test_a_piece_is_handed_in_again_as_it_was_though_a_retained_copy_was_left_out_of_it() -> None:
    stored, begun = [message(10)], [message(number) for number in range(20, 24)]
    copy = begun[0]._replace(packet_id=30, retained=True)
    core = await handed_in_again(stored, begun, [*stored, begun[0], copy, *begun[1:]])
    assert [(chunk.count, chunk.position) for chunk in core.stored] == [
        (len(begun) * MEMBERS, core.place.until)
    ]


async def test_a_retained_copy_of_what_was_stored_before_a_kill_is_left_out() -> None:
    stored, begun = [message(10)], [message(20)]
    copy = stored[0]._replace(packet_id=11, repeat=False, retained=True)
    core = await handed_in_again(stored, begun, [*stored, copy, *begun])
    assert 10 not in core.values()
