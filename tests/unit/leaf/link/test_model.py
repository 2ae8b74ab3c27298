"""Whatever is lost or restored, what the leaf's stream holds is at the hub in the end."""

from __future__ import annotations

import copy

import pytest

from tests.harness.examples import machine
from tests.unit.leaf.link import registrar
from tests.unit.leaf.link.model import Link
from tests.unit.leaf.link.stores import HubStore, Row

TestLink = Link.TestCase
TestLink.settings = machine(60, 25)


def test_the_model_loses_messages_where_nobody_looks() -> None:
    """Without the controller the model shows what was seen on real servers; otherwise it would prove
    nothing."""
    model = Link()
    model.begin()
    model.hub.follow(str(model.epoch))
    model.publish(4, 9)
    backup = copy.deepcopy(model.hub)
    model.publish(4, 4)
    model.hub = backup
    model.hub.restarts()
    model.publish(2, 2)
    missing = set(model.leaf.payloads) - model.hub.payloads
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
    assert [row.leaf_seq for row in model.hub.rows] == [10], "the agent's own record flows at once"
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


def test_a_cursor_below_the_checkpoint_may_stand_behind_a_hole() -> None:
    """The ack floor trails, so that a restored hub takes up the flow between what it holds and the
    checkpoint, and the link breaks before it is past that."""
    model = Link()
    model.begin()
    model.settle()
    backup = copy.deepcopy(model.hub)
    model.publish(3, 9)
    model.publish(6, 9, acknowledged=False)
    model.an_announcement_is_due()
    model.the_agent_dies_or_starts()
    model.replace_hub(backup)
    model.flow(3, acknowledged=False)
    model.link_breaks()
    model.the_agent_dies_or_starts()
    model.link_is_back()
    assert model.checkpoint is not None
    assert backup.cursor + 3 < model.hub.cursor < model.checkpoint.leaf_seq
    model.teardown()


def test_what_a_hub_was_seen_to_lack_is_not_forgotten_when_more_has_flowed() -> None:
    """Nothing is agreed on yet, and the leaf's clock is set so far that the pause ends between the comparison
    and the repair."""
    model = Link()
    model.begin()
    model.turn()
    backup = copy.deepcopy(model.hub)
    model.publish(2, 9)
    assert backup.leaf is not None
    assert model.checkpoint is None
    model.replace_hub(backup)
    model.turn()
    model.ask()
    assert model.hub.cursor == 0
    model.stepped += 3600.0
    model.publish(1, 9)
    assert model.hub.cursor == model.leaf.last, "every cursor looks well"
    model.teardown()


def test_only_what_is_on_the_disk_of_the_hub_is_confirmed() -> None:
    model = Link()
    model.begin(interval=True)
    model.settle()
    before = model.agreed_to
    model.publish(3, 9)
    model.ask()
    assert model.hub.cursor == model.leaf.last
    assert model.agreed_to == before
    model.hub.sync()
    model.ask()
    assert model.agreed_to == model.leaf.last


def test_a_class_that_never_rests_is_confirmed_up_to_the_answer_before() -> None:
    """Of what flows all the time the newest message is never on disk."""
    model = Link()
    model.begin(interval=True)
    model.settle()
    seen = []
    for _ in range(3):
        model.publish(3, 9)
        model.ask()
        seen.append(model.hub.cursor)
        model.hub.sync()
        model.publish(1, 9)
    model.ask()
    assert model.agreed_to == seen[-1] < model.hub.cursor


def test_what_a_power_cut_took_is_missed_though_data_has_flowed_over_it() -> None:
    """The agent is dead and the hub's server goes on with the link consumer, which knows what the lost
    messages' acknowledgements said: every cursor looks well, and the checkpoint is on disk."""
    model = Link()
    model.begin(interval=True)
    model.settle()
    model.the_agent_dies_or_starts()
    model.publish(3, 9)
    model.the_power_of_the_hub_is_cut(rows=0, device=2, paused=False)
    assert model.hub.cursor == model.leaf.last, "every cursor looks well"
    assert set(model.leaf.payloads) - model.hub.payloads
    model.the_agent_dies_or_starts()
    model.ask()
    assert model.hub.rows[-1].payload not in model.leaf.payloads[: model.agreed_to]
    model.teardown()


@pytest.mark.parametrize("record", [True, False])
def test_an_epoch_that_was_begun_before_a_power_cut_and_announced_after_it_is_not_relied_on(
    record: bool,
) -> None:
    """The leaf's server has forgotten the consumer, so the next epoch begins behind what the hub answered to
    hold; then the hub loses that, before it has heard of the epoch."""
    model = Link()
    model.begin(interval=True)
    model.settle()
    before = model.epoch
    model.publish(3, 9)
    model.the_link_consumer_is_deleted()
    while model.epoch == before:
        model.turn()
    assert model.leaf.consumers[str(model.epoch)].start == model.leaf.last + 1
    model.the_power_of_the_hub_is_cut(rows=0, record=record)
    assert set(model.leaf.payloads) - model.hub.payloads
    model.publish(1, 9)
    model.teardown()


@pytest.mark.parametrize("devices", [0, 2])
def test_what_a_purged_stream_did_not_hold_is_not_confirmed_by_records_that_outlived_it(devices: int) -> None:
    """The stream is restored without its records and filled beyond what they name, a power cut takes what the
    registrar had found out, and what contradicts them is purged."""
    model = Link()
    model.begin(interval=True)
    model.settle()
    backup = copy.deepcopy(model.hub)
    model.publish(1, 1)
    model.settle()
    model.the_agent_dies_or_starts()
    model.replace_hub(backup, alone=True)
    model.hub.rows += [Row(0, f"other-{number}", 0, "") for number in range(2)]
    model.publish(max(1, devices), devices)
    model.the_power_of_the_hub_is_cut(rows=3, record=False)
    model.in_table |= model.hub.durable
    registrar.purge(model.hub, model.now)
    model.the_agent_dies_or_starts()
    model.ask()
    model.teardown()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_slow_leaf_delivered_before_it_answered_the_hub_is_found_behind_later_messages(
    late: bool,
    again: bool,
) -> None:
    """Also by a registrar that was not there when the hub's server asked, and though the leaf begins another
    epoch before the gap was judged."""
    model = Link()
    model.begin()
    model.settle()
    model.registrar = not late
    model.the_hub_asks_a_slow_leaf(unheard=3, later=2)
    assert len(set(model.leaf.payloads) - model.hub.payloads) == 3
    assert model.hub.cursor == model.leaf.last, "every cursor looks well"
    if late:
        model.registrar = True
        registrar.begin(model.hub, model.now)
    model.ask()
    if again:
        model.the_server_of_the_leaf_restarts(0)
    model.teardown()
