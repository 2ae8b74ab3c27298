"""Implements `petiole demo`: a reading's whole way on one machine, with faults and proof."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.contract import Exit

if TYPE_CHECKING:
    from agent.demo.proof import DemoReport
    from agent.demo.story import Story

_DIRECTORY = Path("build/demo")

Directory = Annotated[
    Path, typer.Option("--directory", help="Where it works; an earlier demonstration there is removed.")
]
Hubs = Annotated[int, typer.Option("--hubs", help="How many machines the hub has, 1 or 3.")]


def command(directory: Directory = _DIRECTORY, hubs: Hubs = 1) -> None:
    """Run a hub and two leaves under load, break things while data flows, and show that every reading arrived
    once. With --hubs 3 a whole machine of the hub is killed."""
    if hubs not in (1, 3):
        raise typer.BadParameter("a hub has 1 machine or 3", param_hint="--hubs")
    from rich.console import Console

    from agent.demo.processes import DemoError
    from agent.demo.story import Story, fresh
    from hub_jobs.spark.java import JavaError, check_java

    console = Console(highlight=False)
    story = partial(Story, directory.resolve(), partial(console.print, soft_wrap=True), hubs)
    directory = directory.resolve()
    try:
        check_java()  # the jobs come last
        fresh(directory)
        report = asyncio.run(_played(story))
    except (DemoError, JavaError, OSError) as error:
        console.print(f"[red]the demonstration failed:[/red] {error}", soft_wrap=True)
        raise typer.Exit(Exit.FAILED) from None
    except asyncio.CancelledError:
        console.print("stopped; nothing is left running")
        raise typer.Exit(Exit.FAILED) from None
    (directory / "report.json").write_text(json.dumps(report.as_json(), indent=2) + "\n")
    console.print(report.as_table())
    shown = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    console.print(f"{report.seconds:.0f} s; written to {shown / 'report.json'}; logs in {shown / 'logs'}")
    raise typer.Exit(Exit.WELL if report.whole else Exit.LOSS)


async def _played(story: Callable[[], Story]) -> DemoReport:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await story().tell()
