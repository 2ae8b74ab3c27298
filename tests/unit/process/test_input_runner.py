"""The inputs of an agent when single ones are exchanged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.config import Config, Publish, Seconds
from agent.leaf.intake import Intake
from agent.leaf.publish.core_intake import CoreIntake
from agent.process.input_runner import InputSet
from agent.process.reload import Applied, ConfigChange
from tests.harness.intakes import Core
from tests.harness.wait import until


class Listening:
    """An input that ends when it is to, or never."""

    def __init__(self, name: str, *, ends: bool) -> None:
        self.name, self._ends = name, ends
        self.runs = False

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        self.runs = True
        try:
            await (stopping if self._ends else asyncio.Event()).wait()
        finally:
            self.runs = False


async def test_an_input_that_does_not_end_holds_a_reload_up_no_longer_than_a_stop(tmp_path: Path) -> None:
    config = Config(domain="edge-1", state_dir=tmp_path, publish=Publish(drain=Seconds(0.2)))
    hanging, before, stays = (Listening(name, ends=name != "hangs") for name in ("hangs", "http", "stays"))
    after = Listening("http", ends=True)
    inputs = InputSet(config, [hanging, before, stays], cast(CoreIntake, Core()), {}, {}, Metrics())
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        inputs.begin(group)
        await until(lambda: hanging.runs and before.runs and stays.runs, "they run")
        with capture_logs() as logged:
            await inputs.apply(Applied(config, ConfigChange(("hangs", "http"), ("http",)), [after], {}, {}))
        await until(lambda: after.runs, "what takes its place runs")
        assert [(entry["event"], entry["input"]) for entry in logged if "input" in entry] == [
            ("input not ended in time; cancelled", "hangs")
        ]
        assert (hanging.runs, before.runs, stays.runs) == (False, False, True)
        inputs.stop()
