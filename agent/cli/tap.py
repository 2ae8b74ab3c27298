"""`petiole tap`: the batches that pass through this leaf, read from its own stream.

It connects with the agent's own key, so it needs read access to that key; it makes no consumer and
acknowledges nothing. Exit codes: 0 well; 2 wrong usage; 5 the local server does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from agent.cli.configuration import ConfigFile, account_key, configuration, end
from agent.config import Config
from agent.contract import Exit

if TYPE_CHECKING:
    from agent.cli.query.tap import Filter, ShownBatch, Tap

_MAX_LAST: Final = 1_000

InputNames = Annotated[list[str] | None, typer.Option("--input", help="Only batches of this input.")]
Classes = Annotated[list[str] | None, typer.Option("--class", help="Only this class. Default: all.")]
Devices = Annotated[list[str] | None, typer.Option("--device", help="Only this device; * and ? fit any.")]
MetricNames = Annotated[list[str] | None, typer.Option("--metric", help="Only this metric; * and ? fit any.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")]
Last = Annotated[int, typer.Option("--last", "-n", min=0, max=_MAX_LAST, help="Batches from before.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a batch.")]


def command(
    config: ConfigFile,
    inputs: InputNames = None,
    classes: Classes = None,
    devices: Devices = None,
    metrics: MetricNames = None,
    follow: Follow = False,
    last: Last = 10,
    as_json: AsJson = False,
) -> None:
    """Show the last batches that this leaf has stored, and with --follow those that come."""
    from agent.cli.query.tap import Filter
    from agent.jetstream.connection import EXPECTED

    settings = configuration(config)
    names = [cls.name for cls in settings.class_]
    if settings.role != "leaf":
        end(["tap is for a leaf, which has the batches"])
    if unknown := sorted(set(classes or ()) - set(names)):
        end([f"--class {name}: there is no such class; it has {', '.join(names)}" for name in unknown])
    key = account_key(settings)
    filter_ = Filter(frozenset(inputs or ()), tuple(devices or ()), tuple(metrics or ()))
    show = _printer(as_json)
    try:
        asyncio.run(_run(settings, key, classes or names, filter_, last, follow, show))
    except BrokenPipeError:
        # The reader closed the pipe; drop buffered output so that exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except EXPECTED as error:
        why = str(error) or type(error).__name__
        end([f"the local NATS server at {settings.nats.listen} cannot be used: {why}"], Exit.UNREACHABLE)


def _printer(as_json: bool) -> Callable[[ShownBatch], None]:
    def show(batch: ShownBatch) -> None:
        sys.stdout.write((batch.as_json() if as_json else batch.as_text()) + "\n")
        sys.stdout.flush()

    return show


async def _run(
    settings: Config,
    key: Path,
    classes: list[str],
    filter_: Filter,
    last: int,
    follow: bool,
    show: Callable[[ShownBatch], None],
) -> None:
    from agent.cli.query.tap import POLL_SECONDS, Tap
    from agent.jetstream import JetStream
    from agent.jetstream.connection import connected

    work = asyncio.current_task()
    assert work is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    url = f"nats://{settings.nats.listen}"
    with contextlib.suppress(asyncio.CancelledError):
        async with connected(url, key, settings.domain) as link:
            taps = [Tap(JetStream(link.nc), settings.domain, cls, filter_) for cls in classes]
            await _print_last(taps, last, show)
            while follow:
                passed = [batch for tap in taps for batch in await tap.news()]
                for batch in passed:
                    show(batch)
                if not passed:
                    await asyncio.sleep(POLL_SECONDS)


async def _print_last(taps: list[Tap], last: int, show: Callable[[ShownBatch], None]) -> None:
    batches = [batch for tap in taps for batch in await tap.last(last)]
    batches.sort(key=lambda batch: batch.headers.sealed_at if batch.headers else 0)
    for batch in batches[max(0, len(batches) - last) :]:
        show(batch)
    for tap in taps:
        if tap.incomplete:
            typer.echo(
                f"petiole: only the last {tap.scanned} messages of {tap.stream} were looked at", err=True
            )
