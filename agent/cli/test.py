"""Implements `petiole test`, which runs inputs and prints their readings as NDJSON without storing.

Exit codes: 0 all input became readings; 1 an input failed, or a path matches no file; 2 wrong usage or an
unusable input; 3 some input was invalid.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from agent.base import logs
from agent.base.logs import harmless, shown
from agent.base.metrics import Metrics
from agent.base.terminal import closed_pipe
from agent.base.wait import timeout, unless
from agent.cli.configuration import (
    ConfigFile,
    configuration,
    end,
    local_server,
    mistakes,
    problems,
    seconds_or_end,
)
from agent.cli.query import AdminStatusError, input_states, status_of
from agent.config import Config
from agent.contract import Doubt, Exit, Letter, Request
from agent.leaf.inputs import make_inputs
from agent.leaf.inputs.file.listing import matches
from agent.leaf.inputs.shared import LocalServer
from agent.leaf.intake import CheckedInput, Chunk, Input, Intake, Notes, ResumePoint, Settled
from agent.leaf.publish.pull_chunks import Fragment

END_SECONDS: Final = 5.0
"""Time for inputs to end."""


class _NoNotes:
    """Keeps nothing, so inputs start fresh."""

    def take_stale(self, input_name: str) -> bool:
        return False

    async def kept(self, input_name: str) -> str | None:
        return None

    async def keep(self, input_name: str, text: str) -> None:
        pass

    async def doubt(self, cls: str, doubt: Doubt) -> None:
        pass


class Screen:
    """Replaces the core: accepts everything, stores nothing. `show` gets NDJSON, `tell` problems."""

    def __init__(self, domain: str, show: Callable[[bytes], None], tell: Callable[[str], None]) -> None:
        self.domain = domain
        self._show, self._tell = show, tell
        self.heard: set[str] = set()
        self.letters = 0
        self._shown = 0
        self.news = asyncio.Event()

    @property
    def stores_lost(self) -> int:
        return 0

    @property
    def notes(self) -> Notes:
        return _NoNotes()

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Leave every chunk to `submit`."""
        return False

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        self._show(harmless(chunk.payload))
        self._settle(chunk.on_settled)
        await self._heard(input_name, cls, chunk)

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Show the rules' result of a chunk."""
        for part in parts:
            self._show(harmless(part.payload))
            self._settle(part.on_settled)
        await self._heard(input_name, cls, chunk)

    def _settle(self, on_settled: Callable[[int | None], None] | None) -> None:
        self._shown += 1
        if on_settled is not None:
            on_settled(self._shown)

    async def knows(self, request: Request) -> bool:
        return False

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        return 0

    async def piece(self, input_name: str, piece: Chunk) -> tuple[int, str | None]:
        return 1, None

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        pass

    async def _heard(self, input_name: str, cls: str, chunk: Chunk) -> None:
        await self.dead_letter(input_name, cls, chunk.letters)
        if not chunk.count and not chunk.letters:
            return  # a position that is kept before its lines come
        self.heard.add(input_name)
        self.news.set()

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        for letter in letters:
            self.letters += 1
            self._tell(f"input {input_name}: {shown(letter.at)}: {shown(letter.reason)}")

    async def position(self, input_name: str) -> ResumePoint:
        return ResumePoint()


async def run(
    inputs: Sequence[Input],
    screen: Screen,
    stopping: asyncio.Event,
    tell: Callable[[str], None],
    *,
    seconds: float,
    once: bool,
    intake: Intake | None = None,
) -> bool:
    """Run inputs for so long, or with `once` until each submitted, or until `stopping`. False on failure,
    told by `tell`.
    """
    failed: list[str] = []

    async def guarded(input_: Input) -> None:
        try:
            await input_.run(intake or screen, stopping)
        except Exception as error:  # whatever it fails with is its own
            failed.append(input_.name)
            tell(f"input {input_.name}: {type(error).__name__}: {shown(str(error))}")
        finally:
            screen.heard.add(input_.name)
            screen.news.set()

    tasks = [asyncio.create_task(guarded(input_)) for input_ in inputs]
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            await _enough(tasks, screen, stopping, once=once)
    stopping.set()
    _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    return not failed


async def _enough(
    tasks: Sequence[asyncio.Task[None]], screen: Screen, stopping: asyncio.Event, *, once: bool
) -> None:
    while not stopping.is_set() and not all(task.done() for task in tasks):
        if once and len(screen.heard) >= len(tasks):
            return
        screen.news.clear()
        await unless(stopping, screen.news.wait())


_SECONDS: Final = 10.0
_NOT_RUN: Final = {
    "mqtt": "its broker would take messages from the agent, or keep them for a client that does not come "
    "back; look with a client of MQTT"
}
"""Input types that would change something."""
_TAILS: Final = "file"
"""The input type that can read from the start."""

InputNames = Annotated[
    list[str] | None,
    typer.Option("--input", help="An input of the configuration; may be given several times. Default: all."),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", help="How long, such as 5s. Default: until each input has sent something, 10s at most."
    ),
]
FromStart = Annotated[
    bool, typer.Option("--from-start", help="Read files from their beginning instead of from their end on.")
]


def command(
    config: ConfigFile, inputs: InputNames = None, duration: For = None, from_start: FromStart = False
) -> None:
    """Run inputs without storing anything, and print what they would send."""
    settings = configuration(config)
    seconds = None if duration is None else seconds_or_end("--for", duration)
    # First of all: an input may take its logger as it is made.
    logs.set_up("error" if settings.log.level == "error" else "warning", settings.log.format)
    metrics = Metrics()
    chosen = _chosen(settings, inputs)
    server = local_server(settings)
    made = [
        (_made(options, metrics, server, from_start), options)
        for options in chosen
        if _kind(options) not in _NOT_RUN
    ]
    able = [input_ for input_, options in made if not _hindered(input_, options, settings)]
    for options in chosen:
        if (why := _NOT_RUN.get(_kind(options))) is not None:
            _tell(f"input {options.name} is not run: {why}")
    outcome = asyncio.run(_run(able, settings, metrics, seconds)) if able else Exit.WELL
    for path in _unmatched(chosen):
        _tell(f"no file matches {path}; correct the path, or wait until its program writes")
        outcome = outcome if outcome is not Exit.WELL else Exit.FAILED
    if (bad := _unusable(metrics)) and outcome is Exit.WELL:
        outcome = Exit.LOSS
    for sentence in bad:
        _tell(sentence)
    raise typer.Exit(Exit.USAGE if len(able) < len(chosen) else outcome)


def _chosen(settings: Config, names: Sequence[str] | None) -> list[Any]:
    by_name = {options.name: options for options in settings.input}
    if unknown := sorted(set(names or ()) - by_name.keys()):
        names_known = ", ".join(by_name) or "none"
        end(
            [
                f"--input {name}: there is no such input; the configuration has {names_known}"
                for name in unknown
            ]
        )
    if not by_name:
        end(["the configuration has no input; add an [[input]]"])
    return [options for options in settings.input if not names or options.name in names]


def _made(options: Any, metrics: Metrics, server: LocalServer, from_start: bool) -> CheckedInput:
    if _kind(options) == _TAILS:
        options = msgspec.structs.replace(options, start="beginning" if from_start else "end")
    return make_inputs([options], metrics, server)[0]


def _runs_in_agent(name: str, config: Config) -> bool:
    """Tell whether the running agent runs this input."""
    try:
        status_of(config)
        return input_states(config).get(name, False)
    except AdminStatusError:
        return False


def _kind(options: Any) -> str:
    return str(options.__struct_config__.tag)


def _hindered(input_: CheckedInput, options: Any, config: Config) -> bool:
    """Print an input's obstacles; returns whether any."""
    sentences = problems([input_])
    if sentences and options.listens and not mistakes([input_]) and _runs_in_agent(options.name, config):
        remedy = f"look with `petiole tap --follow --input {options.name}`, or stop the agent"
        sentences = [
            f"input {options.name!r}: the running agent listens on {options.listens} for it; {remedy}"
        ]
    for problem in sentences:
        _tell(problem)
    return bool(sentences)


async def _run(inputs: Sequence[Input], settings: Config, metrics: Metrics, seconds: float | None) -> Exit:
    from agent.leaf.rules.intake import RulesIntake

    stopping = asyncio.Event()

    def show(lines: bytes) -> None:
        try:
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            closed_pipe()
            stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    screen = Screen(settings.domain, show, _tell)
    intake = RulesIntake(screen, settings.rule, metrics)
    well = await run(
        inputs,
        screen,
        stopping,
        _tell,
        seconds=_SECONDS if seconds is None else seconds,
        once=seconds is None,
        intake=intake,
    )
    if not well:
        return Exit.FAILED
    return Exit.LOSS if screen.letters else Exit.WELL


def _unusable(metrics: Metrics) -> list[str]:
    """Return invalid input that is only counted."""
    samples = [sample for family in metrics.invalid.collect() for sample in family.samples]
    return [
        f"input {sample.labels['input']}: {sample.value:.0f} × {sample.labels['reason']}"
        for sample in samples
        if sample.name.endswith("_total") and sample.value
    ]


def _unmatched(chosen: Sequence[Any]) -> list[str]:
    """Return paths without file."""
    configured = [options.path for options in chosen if _kind(options) == _TAILS]
    paths = [path for value in configured for path in ([value] if isinstance(value, str) else value)]
    return [path for path in paths if not matches(str(Path(path).absolute()))]


def _tell(sentence: str) -> None:
    typer.echo(f"petiole: {sentence}", err=True)
