from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.base.clock import ClockReader
from agent.config import Config, ConfigError, Log
from agent.leaf.commands.handlers import AgentControls, ArgumentError, make_handlers, report
from agent.leaf.commands.overrides import CommandError, Overrides, Setter
from agent.leaf.intake import CheckedInput
from agent.leaf.state import State
from agent.leaf.state_file import StateFile
from agent.process.reload import Applied, Reloader, by_command


class HandlerBench:
    """Handlers over overrides whose setters note what they apply."""

    def __init__(self, path: Path, reload: Reloader | None = None) -> None:
        self.applied: list[tuple[str, Any]] = []
        names = ["log_level", "linger", "rate_limit", "input.http", "link"]
        self.state = StateFile(path / "state.json", State(1, "m", "d"))
        settings = Overrides(self.state, {name: self._setter(name) for name in names}, ClockReader().look)
        self.handlers = make_handlers(
            AgentControls(dict, lambda: 3, settings, by_command(reload) if reload else None)
        )

    def _setter(self, name: str) -> Setter:
        return lambda value, _seconds: self.applied.append((name, value))


@pytest.fixture
def bench(tmp_path: Path) -> HandlerBench:
    """Handlers with a link to pause."""
    return HandlerBench(tmp_path)


async def test_flush_says_how_many_batches_it_sealed(bench: HandlerBench) -> None:
    assert (await bench.handlers["flush"].act({})).text == "3 open batches sealed"


@pytest.mark.parametrize("verb", ["ping", "status", "flush", "reload", "resume-link"])
async def test_an_argument_that_a_verb_does_not_take_is_named(bench: HandlerBench, verb: str) -> None:
    with pytest.raises(ArgumentError, match="'path': this verb takes no arguments; leave them out"):
        await bench.handlers[verb].act({"path": "/etc/shadow"})


async def test_set_applies_all_that_it_names(bench: HandlerBench) -> None:
    args = {"log_level": "debug", "linger": "2s", "rate_limit": 100, "input.http": "off", "for": "1h"}
    assert "set for 3600 s" in (await bench.handlers["set"].act(args)).text
    expected = {("log_level", "debug"), ("linger", 2.0), ("rate_limit", 100.0), ("input.http", False)}
    assert set(bench.applied) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"log_level": "debug"}, "for is missing; say for how long, such as for=1h"),
        ({"log_level": "debug", "for": 3600}, "for is 3600; give text"),
        ({"log_level": "debug", "for": "31d"}, "1 s to 2.592e"),
        ({"log_level": "loud", "for": "1h"}, "log_level is 'loud'; give one of debug, info"),
        ({"linger": "6s", "for": "1h"}, "linger is '6s'; give text"),
        ({"linger": 1, "for": "1h"}, "linger is 1; give text"),
        ({"rate_limit": 0, "for": "1h"}, "rate_limit is 0; give readings a second"),
        ({"rate_limit": True, "for": "1h"}, "rate_limit is True"),
        ({"input.http": "maybe", "for": "1h"}, "input.http is 'maybe'; give on or off"),
        ({"input.mqtt": "on", "for": "1h"}, "'input.mqtt' cannot be set; take one of input.http, linger,"),
        ({"link": "paused", "for": "1h"}, "'link' cannot be set"),
        ({"state_dir": "/tmp", "for": "1h"}, "'state_dir' cannot be set"),
        ({"for": "1h"}, "nothing is set; give one of input.http"),
    ],
)
async def test_what_cannot_be_set_is_named_and_nothing_is_applied(
    bench: HandlerBench, args: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(expected)):
        await bench.handlers["set"].act(args)
    assert bench.applied == []
    assert bench.state.current.settings == {}


async def test_one_bad_value_among_good_ones_applies_nothing(bench: HandlerBench) -> None:
    with pytest.raises(ArgumentError):
        await bench.handlers["set"].act({"log_level": "debug", "linger": "never", "for": "1h"})
    assert bench.applied == []


async def test_the_link_is_paused_for_a_time_and_resumed(bench: HandlerBench) -> None:
    assert "paused for 600 s" in (await bench.handlers["pause-link"].act({"for": "10m"})).text
    assert (await bench.handlers["resume-link"].act({})).text == "link resumed"
    assert (await bench.handlers["resume-link"].act({})).text == "link was not paused"
    assert bench.applied == [("link", "paused"), ("link", None), ("link", None)]
    with pytest.raises(ArgumentError, match="for is missing"):
        await bench.handlers["pause-link"].act({})
    with pytest.raises(ArgumentError, match="takes only 'for'"):
        await bench.handlers["pause-link"].act({"for": "10m", "who": "me"})


class Files:
    """A file with this configuration in it, or with problems."""

    def __init__(self, config: Config, problems: list[str] | None = None) -> None:
        self.config, self.found = config, problems

    def read(self) -> Config:
        if self.found:
            raise ConfigError(self.found)
        return self.config

    def make(self, config: Config, names: Sequence[str]) -> list[CheckedInput]:
        return []

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        return []


async def test_a_configuration_with_problems_is_not_reloaded(tmp_path: Path) -> None:
    running = Config("edge-1")
    bad = Reloader(running, Files(running, ["domain: is missing", "x: no"]))
    with pytest.raises(CommandError, match=r"goes on as it is; .*: domain: is missing; x: no"):
        await HandlerBench(tmp_path, bad).handlers["reload"].act({})


async def test_a_reload_says_what_it_changes_and_does_it_after_the_answer(tmp_path: Path) -> None:
    reloader = Reloader(Config("edge-1"), Files(Config("edge-1", log=Log("debug"))))
    reply = await HandlerBench(tmp_path, reloader).handlers["reload"].act({})
    assert reply.text == "the configuration is valid; logging taken in"
    applied: asyncio.Queue[Applied] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reloader.run(applied.put, lambda: None))
        assert reply.then is not None
        assert applied.empty()
        reply.then()
        assert (await applied.get()).config.log.level == "debug"
        running.cancel()


def test_a_report_leaves_out_what_is_too_long_and_keeps_the_rest() -> None:
    text = report({"domain": "d", "classes": {"x": "y" * 40_000}, "link": {"state": "ä"}})
    assert len(text) < 32_000
    shown = json.loads(text)
    assert shown["domain"] == "d"
    assert shown["link"] == {"state": "ä"}
    assert shown["classes"].startswith("left out: 40")
