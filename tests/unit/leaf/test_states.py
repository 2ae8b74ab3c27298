"""What a leaf says of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.base.metrics import Metrics
from agent.leaf import states
from agent.leaf.link.status import LinkState
from agent.leaf.state_file import StateFile, load
from agent.leaf.states import CLOCK_SECONDS, DOWN_SECONDS, LOST_SECONDS, LeafStates


class Leaf:
    """A leaf with the classes `bulk` and `normal` and the inputs `http` and `plc`, of which all is well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now, self.lost, self.held = 0.0, {"bulk": 0, "normal": 0}, dict[str, str]()
        self.inputs, self.metrics = ["http", "plc"], Metrics()
        links = {cls: SimpleNamespace(state=LinkState.FLOWING, not_arriving="") for cls in self.lost}
        self.status = SimpleNamespace(clock_ahead=None, classes=links)
        view = SimpleNamespace(held_back=self.held.get, status=self.status)
        monkeypatch.setattr(states, "loop_time", lambda: self.now)
        for name in self.inputs:
            self.metrics.input_up.labels(name).set(1)
        self.wall = 1.8e9
        monkeypatch.setattr("agent.leaf.states.time.time", lambda: self.wall)
        self._view, self._directory = view, directory
        self.start()

    def start(self) -> None:
        """Start the agent, whose counts of losses begin at 0."""
        path = self._directory / "state.json"
        self.file = StateFile(path, load(path, "edge-1"))
        self.lost.update(dict.fromkeys(self.lost, 0))
        self.states = LeafStates(
            cast(Any, self._view),
            self.lost,
            self.metrics,
            self.lost.__getitem__,
            lambda: self.inputs,
            self.file,
        )


@pytest.fixture
def leaf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Leaf:
    return Leaf(monkeypatch, tmp_path)


def test_a_leaf_of_which_all_is_well_says_nothing(leaf: Leaf) -> None:
    assert leaf.states.now() == leaf.states.announced() == {}


def test_a_loss_is_said_for_an_hour_after_the_last_of_it(leaf: Leaf) -> None:
    leaf.lost["bulk"] = 7
    about = "7 of class bulk; the audit names them"
    assert leaf.states.now() == {"losing": about}
    leaf.now = LOST_SECONDS - 1
    leaf.lost["bulk"] = 9
    assert leaf.states.now() == {"losing": about.replace("7", "9")}
    leaf.now += LOST_SECONDS - 1
    assert leaf.states.now() != {}
    leaf.now += 1
    assert leaf.states.now() == {}
    leaf.lost["bulk"] = 10
    assert leaf.states.now() == {"losing": about.replace("7", "1")}, "what went before is over"


@pytest.mark.parametrize("set_back", [0.0, 7200.0])
async def test_a_loss_is_said_by_the_next_agent_too_for_the_rest_of_the_hour(
    leaf: Leaf, set_back: float
) -> None:
    leaf.lost["bulk"] = 7
    assert leaf.states.now() == {"losing": "7 of class bulk; the audit names them"}
    await leaf.file.save()
    leaf.now, leaf.wall = 5.0, leaf.wall + 600 - set_back
    leaf.start()
    assert leaf.states.now() == {"losing": "7 of class bulk; the audit names them"}
    leaf.lost["bulk"] = 2
    assert leaf.states.now() == {"losing": "9 of class bulk; the audit names them"}
    await leaf.file.save()
    leaf.now += LOST_SECONDS
    assert leaf.states.now() == {}
    leaf.wall += LOST_SECONDS
    leaf.start()
    assert leaf.states.now() == {}


def test_classes_that_are_held_back_for_one_reason_share_it(leaf: Leaf) -> None:
    leaf.held.update(bulk="the disk is short", normal="the disk is short")
    assert leaf.states.now() == {"held": "class bulk, normal: the disk is short"}
    leaf.held["normal"] = "it is full"
    assert leaf.states.now() == {"held": "class bulk: the disk is short; class normal: it is full"}


def test_an_input_that_is_retried_is_announced_as_down_and_one_that_was_switched_off_is_not(
    leaf: Leaf,
) -> None:
    up = leaf.metrics.input_up.labels("plc")
    up.set(0)
    assert leaf.states.now() == leaf.states.announced() == {"input_down": "input plc"}
    up.set(1)
    leaf.now = DOWN_SECONDS
    assert leaf.states.now() == {}
    assert leaf.states.announced() == {"input_down": "input plc"}
    leaf.now += 1
    assert leaf.states.announced() == {}
    up.set(0)
    leaf.inputs.remove("plc")
    assert leaf.states.announced() == {}


def test_a_clock_is_wrong_that_differs_from_the_hubs_by_more_than_a_minute(leaf: Leaf) -> None:
    for ahead, about in (
        (CLOCK_SECONDS, None),
        (-7200.0, "2 hours behind"),
        (180 * 86_400.0, "180 days ahead of"),
    ):
        leaf.status.clock_ahead = ahead
        assert leaf.states.now().get("clock_wrong") == about


def test_a_message_that_does_not_arrive_is_announced(leaf: Leaf) -> None:
    leaf.status.classes["bulk"].not_arriving = "class bulk, message 9"
    assert leaf.states.now() == leaf.states.announced() == {"not_arriving": "class bulk, message 9"}


def test_a_paused_link_is_said(leaf: Leaf) -> None:
    leaf.status.classes["bulk"].state = LinkState.PAUSED
    assert leaf.states.now() == {"paused": "class bulk"}
