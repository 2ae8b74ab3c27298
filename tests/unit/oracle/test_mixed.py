"""Rounds are drawn so that any two values of two dimensions meet, and each follows from its seed."""

from __future__ import annotations

import random

import pytest

from tests.faults.mixed.covering import BLOCK, coverage, met, scenario
from tests.faults.mixed.dimensions import (
    DIMENSIONS,
    Fault,
    Input,
    Policy,
    Scenario,
    Server,
    go_together,
    pairs,
)
from tests.faults.mixed.rounds import may_be_gone


def drawn(block: int) -> list[Scenario]:
    """All rounds of a block."""
    return [scenario(block * BLOCK + number) for number in range(1, BLOCK + 1)]


@pytest.mark.parametrize("block", [0, 1])
def test_all_pairs_meet_within_a_block(block: int) -> None:
    rounds = drawn(block)
    assert set(pairs()) - met(rounds) == set()
    assert coverage(rounds).endswith(f"met in {BLOCK} rounds")


def test_no_two_values_meet_that_exclude_each_other() -> None:
    for one in drawn(0):
        values = [(name, getattr(one, name)) for name in DIMENSIONS]
        assert all(go_together(a, b) for a in values for b in values if a[0] != b[0]), one
        assert one.first != one.second
        assert not (one.server is Server.EXTERNAL and one.has(Fault.LEAF_REVOKED))
        assert not (one.server is Server.EXTERNAL and one.input is Input.MQTT_DEVICE)


def test_a_round_follows_from_its_seed() -> None:
    seeds = random.Random(1).sample(range(1, 2 * BLOCK), 20)
    assert [scenario(seed) for seed in seeds] == [scenario(seed) for seed in seeds]
    assert {scenario(seed).seed for seed in seeds} == set(seeds)
    assert drawn(0)[0] != drawn(1)[0]


def test_readings_may_be_gone_only_where_the_only_copy_goes() -> None:
    for one in drawn(0):
        if may_be_gone(one):
            stores = one.has(Fault.LEAF_STORE_LOST, Fault.LEAF_STORE_RESTORED)
            room = one.has(Fault.STREAM_FULL, Fault.DISK_FULL)
            assert stores or room, one
        if not one.has(Fault.LEAF_STORE_LOST, Fault.LEAF_STORE_RESTORED) and one.policy is Policy.NEW:
            lost_hub = one.has(Fault.HUB_STORE_LOST, Fault.HUB_STORE_RESTORED)
            assert may_be_gone(one) <= lost_hub, one
