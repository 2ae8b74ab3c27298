"""Reads configurations for commands and replaces edited ones; prints all problems and exits with 2.

Input mistakes, which a person must fix, are separate from temporary obstacles.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Protocol

import typer

from agent.base import logs
from agent.config import Config, ConfigError, Problem, Seconds, load
from agent.config.files import hidden
from agent.config.keys import SeedError, public_key
from agent.contract import Exit
from agent.leaf.inputs import OPTIONS
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.intake import CheckedInput
from agent.server.setup import identities

DEFAULT_FILE: Final = Path("/etc/petiole.toml")
"""The path in units, package and image."""
VARIABLE: Final = "PETIOLE_CONFIG"
_OF_MAP: Final = re.compile("map [^:]*:").match
_BUSY_SECONDS: Final = 60.0
_NOT_READ: Final = "cannot be read ({}); name a file with -c or PETIOLE_CONFIG"
_NOT_WRITTEN: Final = "cannot be written ({}); run this as a user who may, such as root"


def default_file() -> Path:
    """Return the file used without `-c`."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_FILE)


ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        help=f"The configuration file (TOML); without it ${VARIABLE}, else {DEFAULT_FILE}.",
        default_factory=default_file,
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def configuration(path: Path) -> Config:
    """Read the configuration, or print all problems and exit."""
    try:
        return read(path)
    except ConfigError as error:
        end(error.problems)


def read(path: Path) -> Config:
    """Read the configuration with all input types. Raises `ConfigError` with every problem."""
    try:
        return load(path, OPTIONS)
    except ConfigError as error:
        # A key of an input that was found wrong already is not named by the input as well.
        named = {
            problem.key.rpartition(".")[2] for problem in error.found if problem.key.startswith("input[")
        }
        more = [problem for problem in _of_inputs(error.inputs) if problem.stood.split(":")[0] not in named]
        # Nor is a fault of a mapping named by each input that has it.
        if any(problem.key.startswith("map[") for problem in error.found):
            more = [problem for problem in more if not _OF_MAP(problem.stood)]
        raise ConfigError.of([*error.found, *more]) from None


def _of_inputs(options: Sequence[Any]) -> list[Problem]:
    if not options:
        return []
    from agent.base.metrics import Metrics
    from agent.leaf.inputs import make_inputs  # not held in memory by a process that a good file starts

    problems = []
    for option in options:
        for sentence in mistakes(make_inputs([option], Metrics(), NO_SERVER)):
            key, _, rest = sentence.partition(": ")
            stood, _, remedy = rest.partition("; ")
            problems.append(Problem(key, stood, remedy or "put that right"))
    return problems


def end(problems: list[str], code: Exit = Exit.USAGE) -> NoReturn:
    """Print every problem and exit."""
    for problem in problems:
        typer.echo(f"petiole: {problem}", err=True)
    raise typer.Exit(code)


def seconds_or_end(option: str, text: str) -> float:
    """Parse a duration option or exit."""
    try:
        return float(Seconds.parse(text))
    except ValueError:
        end([f"{option} {text!r} is not a duration of at most a year, such as 10s, 8h or 3d"])


def end_unreachable(config: Config, error: BaseException, whose: str = "the local") -> NoReturn:
    """Exit because the local server is unusable."""
    from agent.jetstream.info import reason_of

    problem = f"{whose} NATS server at {config.nats.listen} cannot be used: {reason_of(error)}"
    end([problem], Exit.UNREACHABLE)


class Edit:
    """One change of a file."""

    def __init__(self, path: Path, read: bytes) -> None:
        self.path = path
        self._read = read

    @property
    def text(self) -> str:
        """Return the read text. Raises `UnicodeDecodeError`."""
        return self._read.decode()

    def store(self, text: str) -> None:
        """Replace the text, keeping mode, owner and links. Exits if unwritable or changed meanwhile."""
        from agent.base.files import write_private

        try:
            place = self.path.resolve(strict=True)
            before = place.stat()
            if place.read_bytes() != self._read:
                end([f"{self.path}: another program has changed it meanwhile; repeat this"], Exit.CONFLICT)
            owner = (before.st_uid, before.st_gid) if os.geteuid() == 0 else None
            write_private(place, text.encode(), before.st_mode & 0o777, owner)
        except OSError as error:
            end([f"{self.path}: {_NOT_WRITTEN.format(error.strerror)}"])


@contextlib.contextmanager
def editing(path: Path) -> Iterator[Edit]:
    """Lock and read a file for the scope, or exit."""
    with only_command(path, _NOT_WRITTEN):
        try:
            edit = Edit(path, path.read_bytes())
        except OSError as error:
            end([f"{path}: {_NOT_READ.format(error.strerror)}"])
        yield edit


@contextlib.contextmanager
def only_command(path: Path, unlocked: str = "") -> Iterator[None]:
    """Lock a file against other commands, or exit after a minute. `unlocked` words an
    unwritable directory.
    """
    from agent.base.files import LockedError, locked

    with contextlib.ExitStack() as held:
        try:
            place = path.resolve(strict=True)
        except OSError as error:
            end([f"{path}: {_NOT_READ.format(error.strerror)}"])
        try:
            held.enter_context(locked(place, _BUSY_SECONDS))
        except LockedError as error:
            end([f"{path}: {error}; repeat this when that has ended"], Exit.CONFLICT)
        except OSError as error:
            if unlocked:
                end([f"{path}: {unlocked.format(error.strerror)}"])
        yield


def quiet(config: Config) -> None:
    """Log only errors, to standard error."""
    logs.set_up("error", config.log.format)


def account_key(config: Config) -> Path:
    """Return the agent's seed path, or exit if unusable."""
    path = identities(config).account
    try:
        public_key(path)
    except SeedError as error:
        end([f"{error}; it is the agent's own key, made when the agent first runs: run this as its user"])
    return path


def local_server(config: Config) -> LocalServer:
    """Return this machine's server for inputs."""
    return LocalServer(config.nats.url, identities(config).account, config.state_dir)


class HasObstacles(Protocol):
    def obstacles(self) -> list[str]:
        pass


def mistakes(inputs: Iterable[CheckedInput]) -> list[str]:
    """Return mistakes in input options, a sentence each."""
    return [text for input_ in inputs for text in _ask(input_, input_.check)]


def obstacles(parts: Iterable[HasObstacles]) -> list[str]:
    """Return present obstacles, a sentence each."""
    return [text for part in parts for text in _ask(part, part.obstacles)]


def problems(inputs: Sequence[CheckedInput]) -> list[str]:
    """Return mistakes, then obstacles, a sentence each."""
    return [*mistakes(inputs), *obstacles(inputs)]


def _ask(part: object, look: Callable[[], list[str]]) -> list[str]:
    try:
        return [hidden(text) for text in look()]
    except Exception as error:  # a problem that its author did not think of is one all the same
        name = getattr(part, "name", type(part).__name__)
        return [hidden(f"{name}: cannot be checked ({type(error).__name__}: {error}); look at its options")]
