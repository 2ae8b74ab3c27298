"""Whatever is lost or put back, what the leaf's stream holds is at the hub in the end."""

from __future__ import annotations

import copy

from tests.examples import machine
from tests.unit.link.model import Link
from tests.unit.link.stores import HubStore

TestLink = Link.TestCase
TestLink.settings = machine(60, 25)


def test_the_model_loses_messages_where_nobody_looks() -> None:
    """Without the keeper the model shows what was seen on real servers; otherwise it would prove nothing."""
    model = Link()
    model.begin()
    model.hub.follow(str(model.epoch))
    model.publish(4, 9)
    backup = copy.deepcopy(model.hub)
    model.publish(4, 4)
    model.hub = backup
    model.hub.restarts()
    model.publish(2, 2)
    missing = set(model.leaf.payloads) - {payload for _, _, payload in model.hub.held}
    assert len(missing) == 4
    assert model.hub.cursor == len(model.leaf.ids), "and every cursor looks well"


def test_what_came_through_an_epoch_before_is_not_agreed_on_while_more_is_on_its_way() -> None:
    """The aggregate was deleted and data flowed on; the epoch that makes up for it begins with messages of
    devices, while the newest batch that the hub holds stands far behind them."""
    model = Link()
    model.begin()
    model.the_agent_dies_or_starts()
    model.publish(4, 4)
    model.the_agent_dies_or_starts()
    model.settle()
    model.leaf.first = 3
    model.the_agent_dies_or_starts()
    model.publish(3, 3)
    model.hub = HubStore(model.name(), epoch=model.hub.epoch, leaf=model.hub.leaf)
    model.the_agent_dies_or_starts()
    assert [seq for seq, _, _ in model.hub.held] == [10], "the agent's own record flows at once"
    for _ in range(60):
        model.turn()
        model.ask()
        model.flow(1)
    model.teardown()


def test_what_a_recreated_aggregate_does_not_hold_is_not_confirmed() -> None:
    """The aggregate is deleted before any checkpoint is agreed on, and data flows into the new one before
    anybody compares, so that every cursor looks well: only the registrar's record tells."""
    model = Link()
    model.begin()
    model.time_passes()
    model.delete_aggregate()
    model.the_agent_dies_or_starts()
    model.now += 31.0
    model.the_agent_dies_or_starts()
    assert model.hub.cursor == model.leaf.last, "every cursor looks well"
    assert model.agreed_to == 0
    model.teardown()


def test_what_a_wiped_hub_does_not_hold_is_not_confirmed() -> None:
    """The same with the records, where the answer comes after data has flowed again: only the leaf knows that
    the hub has acknowledged messages."""
    model = Link()
    model.begin()
    model.time_passes()
    model.wipe_hub()
    model.the_agent_dies_or_starts()
    model.now, model.meanwhile = model.now + 31.0, 3
    model.the_agent_dies_or_starts()
    assert model.hub.cursor == model.leaf.last, "every cursor looks well"
    assert model.agreed_to == 0
    model.teardown()
