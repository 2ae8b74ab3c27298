"""A model of two stores and a durable source between them, as nats-server 2.15.1 was seen to behave: whatever
is lost or put back, what the leaf's stream holds is at the hub in the end.

What the model leaves out is what the checkpoint cannot cover: a store that is put back, while the agent is
dead, to a moment after the newest checkpoint.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agent.contract import Checkpoint, ClassAnswer, Readings
from agent.link import guard
from agent.link.compare import confirmed, difference
from agent.link.decide import Ask, Memory, Pause, Repair, Resume, decide
from agent.link.guard import NewEpoch, Remembered
from agent.link.seen import Compared, ConsumerSeen, LinkSeen, Seen
from agent.registrar.answer import Stored, class_answer
from agent.registrar.fleet import ClassRecord, Held
from agent.state import Acked

RUN = "01a1fd89-9817-7b93-a754-e595539c3d06"
NOT_PAUSED = float("-inf")


@dataclass
class Consumer:
    """A durable push consumer; `count` is its own sequence, `place` the stream's."""

    start: int
    place: int
    count: int = 0
    paused_until: float = NOT_PAUSED


@dataclass
class LeafStore:
    """The leaf's store: the ids of its messages ("" for a device's) and their payloads, of which those below
    `first` are purged, and its consumers."""

    created: str
    first: int = 1
    ids: list[str] = field(default_factory=list)
    payloads: list[int] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)


@dataclass
class HubStore:
    """The hub's store, an aggregate of this number: (leaf sequence, id, payload) in its order, and what it
    knows of its source."""

    held: list[tuple[int, str, int]] = field(default_factory=list)
    epoch: str = ""
    count: int = 0
    cursor: int = 0
    cursor_id: str = ""
    stream: int = 0

    @property
    def name(self) -> str:
        """The name of the aggregate."""
        return f"TELEMETRY_{self.stream}"


class Link(RuleBasedStateMachine):
    """The leaf, the hub, and the agent between them."""

    compared: Compared | None

    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.names = itertools.count(1)
        self.payload = itertools.count(1)
        self.leaf = LeafStore(self.name())
        self.hub = HubStore()
        self.backups: list[LeafStore] = []
        self.hub_backups: list[HubStore] = []
        self.up, self.link_key, self.up_since = True, self.name(), self.now
        self.stepped = 0.0
        self.alive = self.registrar = True
        self.silent_since: float | None = None
        self.in_table: set[int] = set()
        self.epoch: str | None = None
        self.checkpoint: Checkpoint | None = None
        self.acked: Acked | None = None
        self.attach()

    def name(self) -> str:
        return f"n{next(self.names)}"

    @property
    def wall(self) -> float:
        """The leaf's wall clock, by which its server counts a pause."""
        return self.now + self.stepped

    @property
    def at_hub(self) -> set[int]:
        """What the hub holds or has handed on."""
        return self.in_table | {payload for _, _, payload in self.hub.held}

    # what the servers do

    def flow(self, most: int) -> None:
        """The hub takes what its source's consumer delivers: what that numbers at or below what was taken is
        dropped and acknowledged."""
        consumer = self.leaf.consumers.get(self.hub.epoch)
        if not self.up or consumer is None or consumer.paused_until > self.wall:
            return
        consumer.place = max(consumer.place, self.leaf.first - 1)
        for _ in range(most):
            if consumer.place >= len(self.leaf.ids):
                return
            consumer.place += 1
            consumer.count += 1
            if consumer.count > self.hub.count:
                message = self.leaf.ids[consumer.place - 1]
                self.hub.held.append((consumer.place, message, self.leaf.payloads[consumer.place - 1]))
                self.hub.count, self.hub.cursor, self.hub.cursor_id = consumer.count, consumer.place, message

    def announce(self, epoch: str) -> None:
        """The registrar has the source follow the announced epoch."""
        if self.hub.epoch != epoch:
            self.hub.epoch, self.hub.count, self.hub.cursor, self.hub.cursor_id = epoch, 0, 0, ""

    # what the agent does

    def attach(self) -> None:
        """A connection to the local server: the local guard, then the keeper from the start."""
        id_here = None
        if self.checkpoint is not None and self.held(self.checkpoint.leaf_seq):
            id_here = self.leaf.ids[self.checkpoint.leaf_seq - 1]
        verdict = guard.judge(
            Remembered(self.epoch, self.acked, self.checkpoint),
            guard.Seen(self.leaf.created, len(self.leaf.ids), id_here),
        )
        if verdict is not None:
            self.new_epoch(verdict)
        self.store(f"{RUN}-normal-ledger-{next(self.payload)}")
        self.acked = Acked(RUN, 1, len(self.leaf.ids), self.leaf.created, Readings())
        self.flow(50)  # what the link does before anybody has asked
        self.memory, self.compared, self.agreed_to = Memory(), None, 0
        self.may_repair_at = 0.0

    def held(self, seq: int) -> bool:
        """Whether the leaf holds a message at a sequence."""
        return self.leaf.first <= seq <= len(self.leaf.ids)

    def store(self, message: str) -> None:
        self.leaf.ids.append(message)
        self.leaf.payloads.append(next(self.payload))

    def new_epoch(self, verdict: NewEpoch) -> None:
        self.epoch = self.name()
        self.leaf.consumers[self.epoch] = Consumer(verdict.start, verdict.start - 1)
        if self.checkpoint is not None and self.checkpoint.leaf_seq >= verdict.start:
            self.checkpoint = None
        if self.acked is not None:
            self.acked = Acked(RUN, 1, len(self.leaf.ids), self.leaf.created, Readings())

    def ask(self) -> None:
        """Announce, and set the answer beside what is here."""
        assert self.epoch is not None
        if not (self.up and self.registrar):
            self.silent_since = self.silent_since or self.now
            return
        self.silent_since = None
        consumer = self.leaf.consumers.get(self.epoch)
        self.announce(self.epoch)
        ids, cursor, checkpoint = self.leaf.ids, self.hub.cursor, self.checkpoint
        same = None
        if self.hub.cursor_id and self.held(cursor):
            same = ids[cursor - 1] == self.hub.cursor_id
        own, agreed = True, None
        if checkpoint is not None:
            own = not self.held(checkpoint.leaf_seq) or ids[checkpoint.leaf_seq - 1] == checkpoint.message_id
            at_hub = (
                self.hub.held[checkpoint.hub_seq - 1][:2]
                if checkpoint.hub_seq <= len(self.hub.held)
                else None
            )
            here = checkpoint.hub_stream == self.hub.name
            agreed = here and at_hub == (checkpoint.leaf_seq, checkpoint.message_id)
        answer = self.answer(agreed)
        compared = Compared(
            asked=self.now,
            link_key=self.link_key,
            epoch=self.epoch,
            start=consumer.start if consumer else 1,
            floor=max(consumer.place, self.leaf.first - 1) if consumer else 0,
            first=self.leaf.first,
            last=len(ids),
            cursor=cursor,
            same=same,
            checkpoint=checkpoint.leaf_seq if checkpoint else 0,
            own=own,
            agreed=answer.agreed,
            certain=answer.certain,
            word=answer.state,
        )
        self.compared = compared
        if difference(compared) is None:
            self.agreed_to = confirmed(compared)
            self.propose(answer.checkpoint)
            beyond = set(self.leaf.payloads[self.leaf.first - 1 : self.agreed_to]) - self.at_hub
            assert not beyond, f"{sorted(beyond)} count as confirmed and are not at the hub"

    def answer(self, agreed: bool | None) -> ClassAnswer:
        """What the registrar tells of the present epoch; where the message at the cursor has no id it looks
        for the newest one that has, as its server finds it."""
        hub, held, batch = self.hub, None, None
        if hub.cursor:
            held = Held(hub.cursor, hub.cursor_id, len(hub.held), len(hub.held))
        for hub_seq, (seq, message, _) in enumerate(hub.held, 1):
            batch = Stored(seq, message, hub_seq) if message and not hub.cursor_id else batch
        record = ClassRecord(hub.epoch, self.leaf.created, hub.name, "", held)
        return class_answer(record, "flowing", agreed, batch)

    def propose(self, proposed: Checkpoint | None) -> None:
        """The hub's proposal is agreed on where the leaf holds the same there."""
        if proposed is None or not self.held(proposed.leaf_seq):
            return
        if self.leaf.ids[proposed.leaf_seq - 1] == proposed.message_id:
            self.checkpoint = proposed
            self.agreed_to = max(self.agreed_to, proposed.leaf_seq)

    def turn(self) -> None:
        """One look of the keeper, a second later."""
        self.now += 1.0
        if not self.alive:
            return
        assert self.epoch is not None
        consumer = self.leaf.consumers.get(self.epoch)
        seen = Seen(
            now=self.now,
            epoch=self.epoch,
            link=LinkSeen(self.up, self.up_since, self.link_key if self.up else ""),
            consumer=None
            if consumer is None
            else ConsumerSeen(
                start=consumer.start,
                paused_for=max(0.0, consumer.paused_until - self.wall),
                bound=self.up,
                delivered=consumer.place,
                floor=consumer.place,
                in_flight=0,
                pending=len(self.leaf.ids) - consumer.place,
            ),
            compared=self.compared,
            silent_since=self.silent_since,
            may_repair_at=self.may_repair_at,
        )
        decision = decide(self.memory, seen)
        self.memory = decision.memory
        for action in decision.actions:
            match action:
                case Pause(seconds) if consumer is not None:
                    consumer.paused_until = self.wall + seconds
                case Resume() if consumer is not None:
                    consumer.paused_until = NOT_PAUSED
                case Ask():
                    self.now += 0.01
                    self.ask()
                case Repair(epoch):
                    self.new_epoch(epoch)
                    self.may_repair_at = self.now + 30.0
                    self.compared, self.agreed_to = None, 0
                case _:
                    pass

    # what happens

    @rule(count=st.integers(1, 4), flowing=st.integers(0, 4))
    def publish(self, count: int, flowing: int) -> None:
        for _ in range(count):
            self.store(f"{RUN}-normal-{next(self.payload)}" if self.alive else "")
        if self.alive:
            self.acked = Acked(RUN, 1, len(self.leaf.ids), self.leaf.created, Readings())
        self.flow(flowing)

    @rule()
    def time_passes(self) -> None:
        self.turn()
        self.flow(3)

    @precondition(lambda self: self.alive and self.up)
    @rule()
    def an_announcement_is_due(self) -> None:
        self.now += 0.01
        self.ask()

    @rule()
    def the_link_goes_and_comes(self) -> None:
        self.up = not self.up
        self.up_since, self.link_key = self.now, self.name()
        if self.alive:
            # The event reaches the agent before the server has dialled again.
            self.turn()

    @rule()
    def the_agent_dies_or_starts(self) -> None:
        self.alive = not self.alive
        if self.alive:
            self.attach()
            self.turn()

    @rule()
    def the_link_consumer_is_deleted(self) -> None:
        if self.epoch is not None:
            self.leaf.consumers.pop(self.epoch, None)

    @rule()
    def stores_are_copied(self) -> None:
        self.backups.append(copy.deepcopy(self.leaf))
        self.hub_backups.append(copy.deepcopy(self.hub))

    @precondition(lambda self: self.hub_backups)
    @rule(which=st.integers(0, 9))
    def the_hub_is_put_back(self, which: int) -> None:
        self.settle()
        backup = self.hub_backups[which % len(self.hub_backups)]
        if self.checkpoint is None or len(backup.held) >= self.checkpoint.hub_seq:
            return
        self.restart_link()
        self.hub = copy.deepcopy(backup)

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 4), device=st.integers(0, 6))
    def the_hub_is_put_back_while_the_agent_is_dead(self, count: int, device: int) -> None:
        self.settle()
        backup = copy.deepcopy(self.hub)
        self.publish(count, count)
        self.settle()
        if self.checkpoint is None or len(backup.held) >= self.checkpoint.hub_seq:
            return
        self.alive = False
        self.restart_link()
        self.hub = backup
        self.publish(max(1, device), device)

    @rule()
    def the_aggregate_is_deleted(self) -> None:
        self.settle()
        if self.checkpoint is None:
            return
        self.restart_link()
        self.hub = HubStore(epoch=self.hub.epoch)
        self.backups, self.hub_backups = [], []

    @precondition(lambda self: self.backups)
    @rule(which=st.integers(0, 9), device=st.integers(0, 6))
    def the_leaf_is_put_back(self, which: int, device: int) -> None:
        self.settle()
        backup = self.backups[which % len(self.backups)]
        if backup.created != self.leaf.created:
            return
        if self.checkpoint is None or len(backup.ids) >= self.checkpoint.leaf_seq:
            return
        self.leaf = copy.deepcopy(backup)
        self.leaf_restarts(device)

    @rule(device=st.integers(0, 6))
    def the_leaf_is_wiped(self, device: int) -> None:
        self.settle()
        self.wipe_leaf(device)

    def wipe_leaf(self, device: int) -> None:
        self.leaf = LeafStore(self.name())
        self.leaf_restarts(device)

    def leaf_restarts(self, device: int) -> None:
        """The leaf's server is linked before any agent has looked."""
        self.up_since, self.link_key = self.now, self.name()
        self.backups = []
        for _ in range(device):
            self.store("")
        self.flow(device)
        if self.alive:
            self.attach()

    def restart_link(self) -> None:
        """The hub's server went: the agent has paused the link before it is back."""
        self.up = False
        self.turn()
        self.up, self.up_since, self.link_key = True, self.now, self.name()

    def settle(self) -> None:
        """Time enough for what was wrong to be found and repaired, and for a checkpoint where the agent
        lives."""
        self.registrar = True
        if not self.up:
            self.up, self.up_since, self.link_key = True, self.now, self.name()
        for _ in range(120):
            self.turn()
            if self.alive and int(self.now) % 10 == 0:
                self.ask()
            self.flow(50)
        if self.alive:
            self.ask()
            missing = set(self.leaf.payloads[self.leaf.first - 1 :]) - self.at_hub
            assert not missing, f"{sorted(missing)} are on the leaf and not at the hub"

    def teardown(self) -> None:
        if not self.alive:
            self.the_agent_dies_or_starts()
        self.settle()
