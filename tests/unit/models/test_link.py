"""The link under faults that come on top of each other: the model of `tests/unit/link` without time to settle
in between, with a registrar that dies, trimming, an aggregate that is another one, and a clock that is set.

What no checkpoint can cover stays out here too: a store that is restored to a moment after the newest
checkpoint, over which data flows before anybody has compared.
"""

from __future__ import annotations

import copy

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.harness.examples import machine
from tests.unit.leaf.link import registrar
from tests.unit.leaf.link.model import Link
from tests.unit.leaf.link.stores import Row

several = st.integers(0, 9)


class HarderLink(Link):
    """More faults, and no rest between them."""

    @rule()
    def the_registrar_dies_or_comes_back(self) -> None:
        self.registrar = not self.registrar
        if self.registrar:
            registrar.begin(self.hub, self.now)

    @rule(seconds=st.sampled_from([-31_536_000.0, -3_600.0, -7.0, 7.0, 3_600.0, 31_536_000.0]))
    def the_clock_of_the_leaf_is_set(self, seconds: float) -> None:
        self.stepped += seconds

    @rule()
    def a_pause_runs_out_while_nobody_renews_it(self) -> None:
        if not self.alive:
            self.now += 31.0
            self.flow(3)

    @precondition(lambda self: self.alive and self.agreed_to > self.leaf.first)
    @rule()
    def the_leaf_is_trimmed(self) -> None:
        """Up to the confirmed message, which stays; what the hub holds by then goes into the table."""
        self.leaf.first = self.agreed_to
        self.in_table |= self.hub.durable

    @precondition(lambda self: self.alive and self.up and self.registrar)
    @rule()
    def the_leaf_goes_to_another_aggregate(self) -> None:
        """The record of it was lost; what the aggregate before holds is ingested from there."""
        self.hub.sync()
        self.in_table |= self.hub.payloads
        self.hub = self.hub_store(self.hub.stream + 1)
        self.hub_backups = []

    @rule(count=st.integers(1, 9))
    def others_fill_the_hub(self, count: int) -> None:
        self.hub.rows += [Row(0, f"other-{number}", 0, "") for number in range(count)]

    @rule()
    def the_hub_is_purged(self) -> None:
        self.in_table |= self.hub.durable
        registrar.purge(self.hub, self.now)

    @precondition(lambda self: self.alive and self.up)
    @rule()
    def the_server_of_the_hub_restarts(self) -> None:
        self.restart_link()
        self.hub.restarts()
        registrar.begin(self.hub, self.now)

    @rule(count=st.integers(0, 3))
    def answers_take_their_time(self, count: int) -> None:
        """So many messages flow between a question and the look that answers it."""
        self.meanwhile = count

    @precondition(lambda self: self.alive and self.registrar and self.hub_backups)
    @rule(which=several)
    def the_hub_is_put_back_at_once(self, which: int) -> None:
        """The agent lives, so the link is paused until both were compared."""
        self.put_hub_back(which)

    @precondition(lambda self: not self.alive and self.hub_backups)
    @rule(which=several, device=st.integers(0, 6), acknowledged=st.booleans(), alone=st.booleans())
    def the_hub_is_put_back_while_nobody_looks(
        self, which: int, device: int, acknowledged: bool, alone: bool
    ) -> None:
        backup, known = self.hub_backups[which % len(self.hub_backups)], self.checkpoint
        if known is not None and backup.last < known.hub_seq and backup.created == self.hub.created:
            self.replace_hub(backup, alone=alone)
            self.publish(device, device, acknowledged=acknowledged)

    @precondition(lambda self: self.alive and self.registrar and self.hub_backups and self.backups)
    @rule(which=several, other=several, device=st.integers(0, 4))
    def both_are_put_back_at_once(self, which: int, other: int, device: int) -> None:
        if self.may_put_leaf_back(other):
            self.put_hub_back(which)
            self.put_leaf_back(other, device)

    @precondition(lambda self: self.alive and self.backups)
    @rule(which=several, device=st.integers(0, 4))
    def the_leaf_is_put_back_at_once(self, which: int, device: int) -> None:
        if self.may_put_leaf_back(which):
            self.put_leaf_back(which, device)

    @precondition(lambda self: self.alive)
    @rule(device=st.integers(0, 4))
    def the_leaf_is_wiped_at_once(self, device: int) -> None:
        self.wipe_leaf(device)

    @precondition(lambda self: self.alive and self.registrar)
    @rule()
    def the_aggregate_is_deleted_at_once(self) -> None:
        self.delete_aggregate()

    @precondition(lambda self: self.alive and self.registrar)
    @rule()
    def the_hub_is_wiped_at_once(self) -> None:
        self.wipe_hub()

    def put_hub_back(self, which: int) -> None:
        backup = self.hub_backups[which % len(self.hub_backups)]
        self.replace_hub(backup)
        self.uncovered = self.checkpoint is None or backup.last >= self.checkpoint.hub_seq

    def may_put_leaf_back(self, which: int) -> bool:
        backup = self.backups[which % len(self.backups)]
        known = self.checkpoint
        return backup.created == self.leaf.created and known is not None and backup.last < known.leaf_seq

    def put_leaf_back(self, which: int, device: int) -> None:
        self.leaf = copy.deepcopy(self.backups[which % len(self.backups)])
        self.leaf_restarts(device)


TestHarderLink = HarderLink.TestCase
TestHarderLink.settings = machine(150, 30)
