from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.base.clock import Instant
from agent.contract import Clock
from agent.leaf.commands.overrides import CommandError, Overrides, seconds_left
from agent.leaf.state import Setting, State
from agent.leaf.state_file import StateFile, load
from tests.harness.clocks import SECOND
from tests.harness.wait import until


def moment(wall: float, boot: str, since_boot: float) -> Instant:
    """The clocks at one moment, in seconds."""
    return Instant(int(wall * SECOND), Clock(False, boot, int(since_boot * SECOND)))


SET = Setting("debug", since=1000.0, until=1600.0, boot="b", deadline=650.0)


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (moment(1000.0, "b", 50.0), 600.0),
        (moment(1000.0, "b", 650.0), 0.0),
        # Within one boot no step of the clock counts.
        (moment(9999.0, "b", 60.0), 590.0),
        (moment(0.0, "b", 60.0), 590.0),
        (moment(1100.0, "c", 5.0), 500.0),
        (moment(1700.0, "c", 5.0), -100.0),
        # After a reboot, with a clock that is evidently wrong.
        (moment(999.0, "c", 5.0), 0.0),
    ],
)
def test_a_setting_ends_in_its_time_whatever_the_clock_does(now: Instant, left: float) -> None:
    assert seconds_left(SET, now) == left


class Bench:
    """Settings over a state file, setters that note what they are given, and a clock by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path / "state.json"
        self.now = moment(1000.0, "b", 50.0)
        self.applied: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        """A new run of the agent."""
        state = load(self.path, "d") if self.path.exists() else State(1, "m", "d")
        self.state = StateFile(self.path, state)
        setters = {
            name: lambda value, seconds, name=name: self.applied.update({name: (value, seconds)})
            for name in ("log_level", "linger")
        }
        self.applied.clear()
        self.settings = Overrides(self.state, setters, lambda: self.now)
        self.settings.restore()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Nothing is set."""
    return Bench(tmp_path)


async def test_what_is_set_holds_after_a_restart_for_the_rest_of_its_time(bench: Bench) -> None:
    await bench.settings.put({"log_level": "debug"}, 600.0)
    assert bench.applied == {"log_level": ("debug", 600.0)}
    bench.now = moment(1100.0, "b", 150.0)
    bench.open()
    assert bench.applied == {"log_level": ("debug", 500.0)}
    bench.now = moment(1700.0, "c", 5.0)
    bench.open()
    assert bench.applied == {}
    assert bench.state.current.settings == {}


async def test_the_configured_value_is_back_when_the_time_is_over(bench: Bench) -> None:
    task = asyncio.create_task(bench.settings.run())
    await asyncio.sleep(0)
    await bench.settings.put({"log_level": "debug"}, 0.05)
    await bench.settings.put({"linger": 1.0}, 600.0)
    bench.now = moment(1000.06, "b", 50.06)
    await until(lambda: bench.applied["log_level"] == (None, 0.0), "it is back")
    assert bench.applied["linger"] == (1.0, 600.0)
    assert bench.settings.shown() == {"linger": {"value": 1.0, "seconds_left": 600}}
    task.cancel()


async def test_a_reload_ends_what_is_over_and_was_not_looked_at_yet(bench: Bench) -> None:
    await bench.settings.put({"linger": 2.0, "log_level": "debug"}, 60.0)
    await bench.settings.put({"log_level": "info"}, 600.0)
    bench.now = moment(1061.0, "b", 111.0)
    bench.settings.replace_setters(bench.settings._setters)
    assert bench.applied == {"linger": (None, 0.0), "log_level": ("info", 539.0)}
    assert bench.settings.shown().keys() == {"log_level"}


async def test_a_setting_without_a_setter_is_forgotten(bench: Bench) -> None:
    bench.state.current.settings["input.gone"] = SET
    await bench.state.save()
    bench.open()
    assert bench.state.current.settings == {}


async def test_nothing_changes_when_the_state_file_cannot_be_written(bench: Bench) -> None:
    await bench.settings.put({"linger": 1.0}, 600.0)
    bench.path.unlink()
    bench.path.mkdir()
    with pytest.raises(CommandError, match="nothing was changed"):
        await bench.settings.put({"log_level": "debug"}, 600.0)
    with pytest.raises(CommandError, match="nothing was changed"):
        await bench.settings.drop("linger")
    assert bench.applied == {"linger": (1.0, 600.0)}
    assert set(bench.settings.shown()) == {"linger"}
