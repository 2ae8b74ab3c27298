"""A model of a link: a leaf, a hub, and the agent between them. Whatever is lost or restored, what the leaf's
stream holds is at the hub in the end, and what the leaf may trim is there before.

The registrar's record is part of the hub's store. It alone tells that an aggregate was recreated once data
has flowed into it: without it the model would ask of the leaf what no cursor shows.

What the model leaves out is what no checkpoint can cover: a store that is restored, while the agent is dead,
to a moment after the newest checkpoint.
"""

from __future__ import annotations

import copy
import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agent.contract import Announce, Checkpoint, ClassState, Readings
from agent.hub.registrar.stretch import stretch_at_start
from agent.jetstream import ConsumerInfo
from agent.leaf.link import guard
from agent.leaf.link.decide import AnnounceNow, Pause, Repair, Resume, decide
from agent.leaf.link.guard import EpochReason, NewEpoch, RememberedStream
from agent.leaf.link.observation import (
    HubComparison,
    LinkMemory,
    LinkObservation,
    UplinkStatus,
    confirmed,
    difference,
)
from agent.leaf.state import Acked, CheckpointLog, State, earlier_checkpoints, forget_checkpoints
from tests.unit.leaf.link import registrar
from tests.unit.leaf.link.registrar import CLS
from tests.unit.leaf.link.stores import NOT_PAUSED, Consumer, HubStore, LeafStore, Row

DOMAIN = "edge-1"
MACHINE = "m"
RUN = "01a1fd89-9817-7b93-a754-e595539c3d06"


class Link(RuleBasedStateMachine):
    """The leaf, the hub, and the agent between them."""

    comparison: HubComparison | None

    @initialize(interval=st.booleans())
    def begin(self, interval: bool = False) -> None:
        """The hub syncs at an `interval` or before it acknowledges."""
        self.interval, self.boot = interval, "boot" if interval else ""
        self.now = 1000.0
        self.names = itertools.count(1)
        self.payload = itertools.count(1)
        self.leaf = LeafStore(self.name())
        self.hub = self.hub_store()
        self.backups: list[LeafStore] = []
        self.hub_backups: list[HubStore] = []
        self.up, self.link_key, self.up_since = True, self.name(), self.now
        self.stepped = 0.0
        self.alive = self.registrar = True
        self.silent_since: float | None = None
        self.in_table: set[int] = set()
        self.meanwhile = 0
        self.uncovered = False
        self.epoch: str | None = None
        self.state = State(1, MACHINE, DOMAIN)
        self.checkpoints = CheckpointLog(self.state)
        self.acked: Acked | None = None
        self.attach()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest one that is agreed on."""
        return self.state.checkpoint.get(CLS)

    def name(self) -> str:
        return f"n{next(self.names)}"

    @property
    def wall(self) -> float:
        """The leaf's wall clock, by which its server counts a pause."""
        return self.now + self.stepped

    @property
    def at_hub(self) -> set[int]:
        """What the hub holds or has handed on."""
        return self.in_table | self.hub.payloads

    @property
    def safe_at_hub(self) -> set[int]:
        """What the hub has on disk or has handed on."""
        return self.in_table | self.hub.durable

    def hub_store(self, stream: int = 0) -> HubStore:
        """An empty store of a hub that runs."""
        return HubStore(self.name(), stream, interval=self.interval, boot=self.boot)

    # what the servers do

    def flow(self, most: int, *, acknowledged: bool = True) -> None:
        """The hub takes what its source's consumer delivers."""
        if self.up and not self.uncovered:
            self.hub.take(self.leaf, self.wall, most, acknowledged=acknowledged)

    # what the agent does

    def attach(self) -> None:
        """A connection to the local server: the local guard, then the controller from the start."""
        held = [
            one.leaf_seq for one in earlier_checkpoints(self.state.earlier.get(CLS, [])) if self.is_held(one)
        ]
        id_here = None
        if self.checkpoint is not None and self.leaf.holds(self.checkpoint.leaf_seq):
            id_here = self.leaf.ids[self.checkpoint.leaf_seq - 1]
        verdict = guard.judge(
            RememberedStream(self.epoch, self.acked, self.checkpoint),
            guard.EpochObservation(self.leaf.created, self.leaf.last, id_here, earlier=max(held, default=0)),
        )
        if verdict is not None:
            self.new_epoch(verdict)
            if verdict.reason is EpochReason.RESTORED:
                # Over the consumer of an older store nothing flows any more.
                self.leaf.consumers = {str(self.epoch): self.leaf.consumers[str(self.epoch)]}
        self.store(f"{RUN}-normal-ledger-{next(self.payload)}")
        self.acked = Acked(RUN, 1, self.leaf.last, self.leaf.created, Readings())
        self.flow(50)  # what the link does before anybody has asked
        self.memory, self.comparison, self.agreed_to = LinkMemory(), None, 0
        self.may_repair_at = 0.0

    def store(self, message: str) -> None:
        self.leaf.store(message, next(self.payload))

    def new_epoch(self, verdict: NewEpoch) -> None:
        self.epoch = self.name()
        self.leaf.consumers[self.epoch] = Consumer(verdict.start, verdict.start - 1, verdict.start - 1)
        forget_checkpoints(self.state, CLS, verdict.start)
        if self.acked is not None:
            self.acked = Acked(RUN, 1, self.leaf.last, self.leaf.created, Readings())

    def ask(self) -> None:
        """Announce, and set the answer beside what is here."""
        assert self.epoch is not None
        if not (self.up and self.registrar):
            self.silent_since = self.silent_since or self.now
            return
        self.silent_since = None
        consumer, leaf, known = self.leaf.consumers.get(self.epoch), self.leaf, self.checkpoint
        start, floor = (consumer.start, consumer.floor) if consumer else (1, 0)
        said = self.announcement(floor if floor >= max(start, leaf.first) else 0)
        registrar.take_in(self.hub, said)
        self.flow(self.meanwhile, acknowledged=False)
        answer = registrar.answer(self.hub, said, self.now)
        self.uncovered = False
        own = True
        if known is not None and leaf.holds(known.leaf_seq):
            own = leaf.ids[known.leaf_seq - 1] == known.message_id
        same = None
        if answer.message_id and leaf.holds(answer.cursor):
            same = leaf.ids[answer.cursor - 1] == answer.message_id
        comparison = HubComparison(
            asked_at=self.now,
            link_key=self.link_key,
            epoch=self.epoch,
            start=start,
            floor=floor,
            first=leaf.first,
            last=leaf.last,
            cursor=answer.cursor,
            same_at_cursor=same,
            checkpoint=known.leaf_seq if known else 0,
            has_checkpoint=own,
            hub_agrees=answer.agreed,
            cursor_certain=answer.certain,
            hub_state=answer.state,
            fallback=answer.fallback.leaf_seq if answer.fallback and self.is_held(answer.fallback) else 0,
            synced=answer.synced,
        )
        self.comparison = comparison
        if difference(comparison) is None:
            self.agreed_to = confirmed(comparison)
            self.propose(answer.checkpoint)
            beyond = set(leaf.payloads[leaf.first - 1 : self.agreed_to]) - self.safe_at_hub
            assert not beyond, f"{sorted(beyond)} count as confirmed and are not on the hub's disk"

    def announcement(self, acked: int) -> Announce:
        """What the agent announces; the hub has acknowledged so far."""
        assert self.epoch is not None
        leaf = self.leaf
        state = ClassState(self.epoch, leaf.created, leaf.first, leaf.last, self.agreed_to, 0, acked=acked)
        known = {} if self.checkpoint is None else {CLS: self.checkpoint}
        return Announce(DOMAIN, MACHINE, RUN, {}, {CLS: state}, known)

    def is_held(self, place: Checkpoint) -> bool:
        """Whether the leaf holds the message of a checkpoint."""
        return self.leaf.holds(place.leaf_seq) and self.leaf.ids[place.leaf_seq - 1] == place.message_id

    def propose(self, proposed: Checkpoint | None) -> None:
        """The hub's proposal is agreed on where the leaf holds the same there."""
        if proposed is not None and self.is_held(proposed):
            self.checkpoints.agree(CLS, proposed, self.now)
            self.agreed_to = max(self.agreed_to, proposed.leaf_seq)

    def turn(self) -> None:
        """One look of the controller, a second later."""
        self.now += 1.0
        self.note()
        if not self.alive:
            return
        assert self.epoch is not None
        consumer = self.leaf.consumers.get(self.epoch)
        seen = LinkObservation(
            now=self.now,
            epoch=self.epoch,
            link=UplinkStatus(self.up, self.up_since, self.link_key if self.up else ""),
            consumer=None
            if consumer is None
            else ConsumerInfo(
                name="hub-e",
                created="",
                delivered=consumer.place,
                deliveries=consumer.place,
                ack_floor=consumer.floor,
                pending=self.leaf.last - consumer.place,
                ack_pending=max(0, consumer.place - consumer.floor),
                start=consumer.start,
                pause_remaining=max(0.0, consumer.paused_until - self.wall),
                push_bound=self.up,
                config={},
            ),
            comparison=self.comparison,
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
                case AnnounceNow():
                    self.now += 0.01
                    self.ask()
                case Repair(epoch):
                    self.new_epoch(epoch)
                    self.may_repair_at = self.now + 30.0
                    self.comparison, self.agreed_to = None, 0
                case _:
                    pass

    def note(self) -> None:
        """What the registrar sees of the hub's streams each second, and when a link comes up."""
        if self.registrar:
            registrar.note(self.hub, self.now)

    # what happens

    @rule(count=st.integers(1, 4), flowing=st.integers(0, 4), acknowledged=st.booleans())
    def publish(self, count: int, flowing: int, acknowledged: bool = True) -> None:
        for _ in range(count):
            self.store(f"{RUN}-normal-{next(self.payload)}" if self.alive else "")
        if self.alive:
            self.acked = Acked(RUN, 1, self.leaf.last, self.leaf.created, Readings())
        self.flow(flowing, acknowledged=acknowledged)

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
        if self.up:
            self.link_breaks()
        else:
            self.link_is_back()
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

    @rule(device=st.integers(0, 6))
    def the_server_of_the_leaf_restarts(self, device: int) -> None:
        """Its link consumers were in memory."""
        self.leaf.consumers.clear()
        self.leaf_restarts(device)

    @rule()
    def stores_are_copied(self) -> None:
        self.backups.append(copy.deepcopy(self.leaf))
        self.hub_backups.append(copy.deepcopy(self.hub))

    @precondition(lambda self: self.hub_backups)
    @rule(which=st.integers(0, 9))
    def the_hub_is_restored(self, which: int) -> None:
        self.settle()
        backup = self.hub_backups[which % len(self.hub_backups)]
        if self.checkpoint is None or backup.last >= self.checkpoint.hub_seq:
            return
        self.replace_hub(backup)

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 4), device=st.integers(0, 6), alone=st.booleans())
    def the_hub_is_restored_while_the_agent_is_dead(
        self, count: int, device: int, alone: bool = False
    ) -> None:
        self.settle()
        backup = copy.deepcopy(self.hub)
        self.publish(count, count)
        self.settle()
        if self.checkpoint is None or backup.last >= self.checkpoint.hub_seq:
            return
        self.alive = False
        self.replace_hub(backup, alone=alone)
        self.publish(max(1, device), device)

    @rule()
    def the_hub_syncs(self) -> None:
        self.hub.sync()

    @precondition(lambda self: self.interval)
    @rule(rows=st.integers(0, 3), record=st.booleans(), device=st.integers(0, 4), paused=st.booleans())
    def the_power_of_the_hub_is_cut(
        self, rows: int = 0, record: bool = True, device: int = 0, paused: bool = True
    ) -> None:
        """What was not synced is gone but for a few rows; its server, which knows of nothing, goes on before
        the registrar or, not `paused`, any agent has looked. Others take the sequences that are free."""
        self.link_breaks()
        if paused:
            self.turn()
        self.boot = self.name()
        self.hub.power_cut(self.boot, rows, record=record)
        self.hub.restarts()
        self.hub.rows += [Row(0, f"new-{number}", 0, "") for number in range(device)]
        self.link_is_back()
        self.publish(device, device)
        registrar.begin(self.hub, self.now)
        self.hub_backups = []

    def is_known(self) -> bool:
        """Whether the registrar knows where the epoch stands, also after a start. It does not know where an
        epoch begins."""
        record = None if self.hub.leaf is None else self.hub.leaf.classes[CLS]
        if record is None or record.lost or self.hub.stretch is None:
            return False
        begins = stretch_at_start(record, self.now)
        same = record.epoch == self.epoch == self.hub.epoch == self.hub.stretch.epoch
        return same and begins.seq > 0 and self.hub.stretch.seq > 0 and begins.hub_seq >= self.hub.first - 1

    @precondition(lambda self: self.is_known())
    @rule(unheard=st.integers(1, 4), later=st.integers(0, 4), paused=st.booleans(), again=st.booleans())
    def the_hub_asks_a_slow_leaf(
        self, unheard: int = 1, later: int = 0, paused: bool = False, again: bool = True
    ) -> None:
        """The hub's server has started, or only the link was down. Unless the consumer is `paused`, its leaf
        delivers before it answers the hub's server, and is not heard."""
        self.link_breaks()
        if paused:
            self.turn()
        if again:
            self.hub.restarts()
            if self.registrar:
                registrar.begin(self.hub, self.now)
        self.hub.before_answer = unheard
        self.link_is_back()
        self.note()
        self.publish(max(1, unheard), 0)
        self.flow(50)
        if later:
            self.publish(later, later)

    @rule()
    def the_aggregate_is_deleted(self) -> None:
        self.settle()
        self.delete_aggregate()

    @rule()
    def the_hub_is_wiped(self) -> None:
        self.settle()
        self.wipe_hub()

    @precondition(lambda self: self.backups)
    @rule(which=st.integers(0, 9), device=st.integers(0, 6))
    def the_leaf_is_restored(self, which: int, device: int) -> None:
        self.settle()
        backup = self.backups[which % len(self.backups)]
        if backup.created != self.leaf.created:
            return
        if self.checkpoint is None or backup.last >= self.checkpoint.leaf_seq:
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
        self.link_breaks()
        self.link_is_back()
        self.backups = []
        for _ in range(device):
            self.store("")
        self.flow(device)
        if self.alive:
            self.attach()

    def delete_aggregate(self) -> None:
        """The registrar creates it again, with the sources that its records want; what the leaf still holds
        of it comes again, whatever it has trimmed is in the table."""
        self.restart_link()
        hub = self.hub
        self.hub = self.hub_store(hub.stream)
        self.hub.epoch, self.hub.leaf = hub.epoch, hub.leaf
        self.backups, self.hub_backups = [], []

    def wipe_hub(self) -> None:
        """The records are gone as well, so that there is no source until the leaf announces itself."""
        self.restart_link()
        self.hub = self.hub_store(self.hub.stream)
        self.backups, self.hub_backups = [], []

    def replace_hub(self, backup: HubStore, *, alone: bool = False) -> None:
        """Restore the hub's store from a copy, or the aggregate `alone`, without the records."""
        self.restart_link()
        leaf, noted = self.hub.leaf, self.hub.noted
        self.hub = copy.deepcopy(backup)
        self.hub.boot = self.boot
        if alone:
            self.hub.leaf, self.hub.noted = leaf, noted
        self.hub.sync()
        self.hub.restarts()
        registrar.begin(self.hub, self.now)

    def restart_link(self) -> None:
        """The hub's server went: the agent has paused the link before it is back."""
        self.link_breaks()
        self.turn()
        self.link_is_back()

    def link_breaks(self) -> None:
        """The servers lose each other."""
        self.up, self.hub.subscribed, self.hub.before_answer = False, False, 0

    def link_is_back(self) -> None:
        """They have found each other."""
        self.up, self.up_since, self.link_key = True, self.now, self.name()

    def settle(self) -> None:
        """Time enough for what was wrong to be found and repaired, and for a checkpoint where the agent
        lives."""
        if not self.registrar:
            self.registrar = True
            registrar.begin(self.hub, self.now)
        if not self.up:
            self.link_is_back()
        for _ in range(120):
            self.hub.sync()
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
