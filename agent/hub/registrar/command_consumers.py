"""The hub's consumers of commands, one a leaf: made under the epoch that the leaf announces, and what the hub
holds for it.

A leaf's mirror names its consumer and the subject on which that delivers, and neither can be changed in a
mirror. Seen on nats-server 2.15.1: the deliver subject of a consumer that is in use can't be changed (10013),
and a mirror that is recreated over an old consumer begins after what that has delivered. So a new epoch
deletes the consumer and makes it again, from the first command on. One that was deleted by hand is made again
under the same epoch: the mirror then goes on after its last message.
"""

from __future__ import annotations

from typing import Any, Final

from agent.contract import (
    COMMANDS,
    COMMANDS_CHECKED,
    Announce,
    CommandsHeld,
    CommandsWanted,
    command_consumer,
    command_deliver,
    command_subjects,
)
from agent.hub.registrar.active_problems import ActiveProblems
from agent.hub.registrar.aggregate import commands_config
from agent.jetstream import (
    ConsumerInfo,
    JetStream,
    JetStreamError,
    RawMessage,
    StreamInfo,
    nanoseconds,
)

_MAX_ACK_PENDING: Final = 1000


class CommandConsumers:
    """Keeps the consumers of `COMMANDS`, which stands on so many servers of the hub."""

    def __init__(self, js: JetStream, problems: ActiveProblems, replicas: int = 1) -> None:
        self._js = js
        self._replicas = replicas
        self._problems = problems

    async def answer(self, announce: Announce) -> CommandsHeld | None:
        """What the hub holds for a leaf, once its consumer is there; None where the leaf asks for none or the
        hub's server cannot do it now, which must not keep its readings waiting."""
        wanted = announce.commands
        if wanted is None:
            return None
        about = f"commands of {announce.domain}"
        try:
            held = await self._held(announce.domain, wanted)
        except JetStreamError as error:
            self._problems.begin(about, f"the commands of {announce.domain} cannot be delivered: {error}")
            return None
        self._problems.end(about, f"the commands of {announce.domain} are delivered")
        return held

    async def _held(self, domain: str, wanted: CommandsWanted) -> CommandsHeld:
        stream = await self._js.get_or_create_stream(commands_config(self._replicas))
        newest = await self._js.get_message(COMMANDS, last_by_subject=command_subjects(domain))
        last = newest.seq if newest is not None else 0
        agreed = await self._agreed(wanted, stream, newest)
        if wanted.idle and wanted.last == last and agreed is not False:
            await self._drop(domain)
            return CommandsHeld(wanted.epoch, stream.created, stream.last, last, 0, agreed)
        # After the newest command: one that is stored in between counts as pending, never as delivered.
        consumer = await self._consumer(domain, wanted.epoch)
        # What was delivered counts as missing until the leaf has acknowledged it, which takes a second.
        behind = consumer.pending + consumer.ack_pending if last > wanted.last else 0
        return CommandsHeld(wanted.epoch, stream.created, stream.last, last, behind, agreed)

    async def _agreed(
        self, wanted: CommandsWanted, stream: StreamInfo, newest: RawMessage | None
    ) -> bool | None:
        """Whether the mirror's commands are those that stand there; None where none of them does."""
        agreed = None
        for seq, time in wanted.held[:COMMANDS_CHECKED]:
            if seq > stream.last:
                return False
            there = newest
            if there is None or there.seq != seq:
                there = await self._js.get_message(COMMANDS, seq=seq)
            if there is not None:
                agreed = nanoseconds(there.time) == time
                if not agreed:
                    return False
        return agreed

    async def _drop(self, domain: str) -> None:
        """Nothing is to be delivered: without the consumer no heartbeat crosses the link. The leaf's server
        asks for it at least each two minutes, and finds it as soon as there is a command."""
        name = command_consumer(domain)
        if await self._js.find_consumer(COMMANDS, name) is not None:
            await self._js.delete_consumer(COMMANDS, name)

    async def _consumer(self, domain: str, epoch: str) -> ConsumerInfo:
        name = command_consumer(domain)
        info = await self._js.find_consumer(COMMANDS, name)
        if info is not None:
            if info.config.get("deliver_subject") == command_deliver(domain, epoch):
                return info
            await self._js.delete_consumer(COMMANDS, name)
        return await self._js.create_consumer(COMMANDS, consumer_config(domain, epoch))


def consumer_config(domain: str, epoch: str) -> dict[str, Any]:
    """The consumer of one leaf's commands, from the first one on."""
    name = command_consumer(domain)
    return {
        "name": name,
        "durable_name": name,
        "filter_subject": command_subjects(domain),
        "deliver_subject": command_deliver(domain, epoch),
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "flow_control",
        "max_ack_pending": _MAX_ACK_PENDING,
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
    }
