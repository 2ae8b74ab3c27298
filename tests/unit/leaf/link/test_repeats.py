"""What a repair sends: all that is missing, and little that is not."""

from __future__ import annotations

import copy
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.leaf.link.model import Link

some = st.integers(0, 6)


def agreed(rounds: list[int], acknowledged: bool) -> Link:
    """A link on which both sides have agreed on so many messages by so many announcements; with
    `acknowledged` the leaf's ack floor moves along."""
    model = Link()
    model.begin()
    model.settle()
    for count in rounds:
        flows(model, count, acknowledged)
        announces(model)
    return model


def flows(model: Link, count: int, acknowledged: bool) -> None:
    """So many messages are stored and come to the hub."""
    model.publish(count, 99, acknowledged=acknowledged)


def announces(model: Link) -> None:
    """The next announcement."""
    model.now += 10.0
    model.ask()


def twice(model: Link) -> int:
    """How many messages came to the hub again, once the link has settled."""
    model.settle()
    return sum(Counter(row.payload for row in model.hub.rows).values()) - len(model.hub.payloads)


@settings(max_examples=60)
@given(
    rounds=st.lists(st.integers(1, 4), min_size=2, max_size=8),
    since=some,
    later=st.integers(1, 6),
    device=some,
    alive=st.booleans(),
    acknowledged=st.booleans(),
)
def test_a_restored_hub_is_sent_again_what_came_after_the_announcement_before_the_copy_at_most(
    rounds: list[int], since: int, later: int, device: int, alive: bool, acknowledged: bool
) -> None:
    model = agreed(rounds, acknowledged)
    flows(model, since, acknowledged)
    backup = copy.deepcopy(model.hub)
    flows(model, later, acknowledged)
    announces(model)
    announces(model)
    if alive:
        model.replace_hub(backup)
        assert twice(model) <= since
        return
    model.the_agent_dies_or_starts()
    model.replace_hub(backup)
    model.publish(device, 99)
    model.the_agent_dies_or_starts()
    over = len(model.hub.payloads - backup.payloads)
    assert twice(model) <= since + over, "besides what flowed before both were compared"


@settings(max_examples=60)
@given(
    rounds=st.lists(st.integers(1, 4), min_size=2, max_size=8),
    since=some,
    later=st.integers(1, 6),
    device=some,
)
def test_a_restored_leaf_sends_again_what_came_after_the_announcement_before_the_copy_at_most(
    rounds: list[int], since: int, later: int, device: int
) -> None:
    model = agreed(rounds, acknowledged=True)
    flows(model, since, acknowledged=True)
    backup = copy.deepcopy(model.leaf)
    flows(model, later, acknowledged=True)
    announces(model)
    announces(model)
    held, model.leaf = model.hub.payloads, backup
    model.leaf_restarts(device)
    over = len(model.hub.payloads - held)
    assert twice(model) <= since + over, "besides what flowed before the agent looked"
