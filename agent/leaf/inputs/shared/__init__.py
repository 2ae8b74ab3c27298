"""What every input is made of: the base of its options and the base of its class.

A new input derives both, the options in `__init__.py` and the class in `input.py` of a folder of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar, final
from urllib.parse import urlsplit

import structlog
from msgspec import Struct, field

from agent import contract
from agent.base.metrics import Metrics
from agent.config import Linger
from agent.leaf.inputs.formats import Format, LineParser, Precision, make_parser
from agent.leaf.intake import Intake, Level


class InputOptions(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """The options that all inputs share. A subclass gives `name` a default, names its type as `tag`, and
    repeats `kw_only`."""

    name: str
    """Names the input in batch subjects and metrics."""
    class_: str = field(name="class", default=contract.DEFAULT_CLASS)
    """The class of its readings."""
    ack: Level = "stored"
    """What an acknowledgement means."""
    linger: Linger | None = None
    """As `publish.linger`, for its batches; without effect where the input pulls."""
    pulls: ClassVar[bool] = False
    """Whether the input has positions, so that its source still has what is not stored."""

    @property
    def listens(self) -> str | None:
        """The address on which the input listens, as the option has it; None for an input that does not."""
        return None

    def doubles(self, other: InputOptions) -> str | None:
        """Why readings would be stored twice, or not at all, by this input beside another, with a remedy;
        None where they would not."""
        return None

    @property
    def subscribe_subjects(self) -> tuple[str, ...]:
        """The subjects of the local server that the agent's user subscribes to for this input, and that local
        programs may publish to."""
        return ()


class LocalServer(Struct, frozen=True):
    """The leaf's own NATS server, for inputs that are its clients, and its state directory."""

    url: str
    seed_file: Path
    """The seed of the agent's identity on that server."""
    state_dir: Path | None = None
    """Where an input may keep files below a folder of its type; None where it is only checked."""

    def file(self, kind: str, name: str) -> Path | None:
        """A file of an input of this type."""
        return None if self.state_dir is None else self.state_dir / kind / name


NO_SERVER: Final = LocalServer("nats://127.0.0.1:4222", Path())
"""For an input that is checked only, or is no client of the local server."""


_Options = TypeVar("_Options", bound=InputOptions)


class ConfiguredInput(ABC, Generic[_Options]):
    """An input that an `[[input]]` of the configuration describes. All are made by the same constructor."""

    def __init__(self, options: _Options, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        self._options = options
        self._metrics = metrics
        self._server = server
        self._log = structlog.get_logger(options.__struct_config__.tag).bind(input=options.name)

    @property
    def name(self) -> str:
        """The name in the configuration and in the batch subject."""
        return self._options.name

    @final
    def check(self) -> list[str]:
        """The mistakes in the options, a sentence each. Looks at the options alone: only a person can correct
        them, so an agent with a mistake does not start."""
        return [f"input {self.name!r}: {mistake}" for mistake in self._mistakes()]

    @final
    def obstacles(self) -> list[str]:
        """What keeps the input from running on this machine now, a sentence each: a taken port, a missing
        directory or token. It may go by itself, so the agent starts and retries the input until it runs."""
        return [f"input {self.name!r}: {obstacle}" for obstacle in self._obstacles()]

    def _mistakes(self) -> Iterable[str]:
        """The sentences of `check`, without the name of the input: what is wrong; the remedy."""
        return ()

    def _obstacles(self) -> Iterable[str]:
        """The sentences of `obstacles`, without the name of the input."""
        return ()

    @abstractmethod
    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Take in readings until `stopping` is set, then answer or store what was taken in."""


class LineOptions(InputOptions, kw_only=True):
    """What the lines of an input are. deploy/reference.toml says what each means."""

    format: Format = "ndjson"
    precision: Precision = "ns"
    device_tag: str = "host"

    def parser(self, domain: str) -> LineParser:
        """What parses them; `domain` is that of the machine."""
        return make_parser(self.format, domain, precision=self.precision, device_tag=self.device_tag)


def url_problem(url: str, schemes: Container[str], example: str) -> str | None:
    """Why the option `url` does not name a host under one of these schemes, or names a user as well; None if
    it can be used. What may hold a password is not quoted."""
    try:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            return f"url has a user in it; write it as {example}, and the user in user and password_file"
        usable = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if usable:
        return None
    quoted = "" if "@" in url else f" {url!r:.80}"
    return f"url{quoted} does not name a server; write it as {example}"


def missing_extra(extra: str, *modules: str) -> list[str]:
    """The mistake that an extra with these modules is not installed; empty where it is."""
    if all(find_spec(module) is not None for module in modules):
        return []
    return [f'needs the extra {extra}; install it with: pip install "petiole[{extra}]"']
