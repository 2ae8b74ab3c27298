"""Provides the base classes of inputs and their options."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Final, Generic, TypeVar, final
from urllib.parse import urlsplit

import structlog
from msgspec import Struct, field

from agent import contract
from agent.base.metrics import Metrics
from agent.config import Linger
from agent.leaf.inputs.formats import Format, LineParser, Precision, make_parser
from agent.leaf.intake import Intake, Level
from agent.mapping.schema import NAMES_MAP, NAMES_PRESET, Map


class InputOptions(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """Common options. A subclass sets a default `name`, its type as `tag`, and `kw_only`."""

    name: str
    """Name in batch subjects and metrics."""
    class_: str = field(name="class", default=contract.DEFAULT_CLASS)
    """Class of the readings."""
    ack: Level = "stored"
    """Meaning of an acknowledgement."""
    linger: Linger | None = None
    """As `publish.linger`; no effect for pull inputs."""
    pulls: ClassVar[bool] = False
    """Whether the source keeps unstored data, by positions."""

    @property
    def listens(self) -> str | None:
        """Return the listen address as configured, or None."""
        return None

    def doubles(self, other: InputOptions) -> str | None:
        """Return why this input and another would store twice or not at all, with remedy, or None."""
        return None

    @property
    def subscribe_subjects(self) -> tuple[str, ...]:
        """Return local subjects that the agent subscribes and local programs may publish."""
        return ()


NamedMap = Annotated[Map | None, NAMES_MAP]
NamedPreset = Annotated[Map | None, NAMES_PRESET]


class HasMapping:
    """Adds the mapping to a Struct with the fields `map` and `preset`."""

    __slots__ = ()
    map: NamedMap
    preset: NamedPreset

    @property
    def mapping(self) -> Map | None:
        """Return the given mapping."""
        return self.map or self.preset

    def map_problems(self, *, has_topic: bool) -> Iterator[str]:
        """Yield faults of the mapping at this input: fault; remedy."""
        if self.map is not None and self.preset is not None:
            yield f"map {self.map.name} stands beside preset; keep one, or write preset in the [[map]]"
        if self.mapping is not None:
            from agent.leaf.inputs.shared.mapped import map_problems  # not held in memory without mappings

            yield from map_problems(self.mapping, "domain", has_topic=has_topic)


class LocalServer(Struct, frozen=True):
    """The leaf's own NATS server and state directory."""

    url: str
    seed_file: Path
    """Seed of the agent's identity."""
    state_dir: Path | None = None
    """Directory for inputs' files, by type; None when only checked."""

    def file(self, kind: str, name: str) -> Path | None:
        """Return a file path of an input of this type."""
        return None if self.state_dir is None else self.state_dir / kind / name


NO_SERVER: Final = LocalServer("nats://127.0.0.1:4222", Path())
"""For inputs that are only checked or do not use the local server."""


_Options = TypeVar("_Options", bound=InputOptions)


class ConfiguredInput(ABC, Generic[_Options]):
    """An input of an `[[input]]`. All have the same constructor."""

    def __init__(self, options: _Options, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        self._options = options
        self._metrics = metrics
        self._server = server
        self._log = structlog.get_logger(options.__struct_config__.tag).bind(input=options.name)

    @property
    def name(self) -> str:
        """Name in the configuration and batch subjects."""
        return self._options.name

    @final
    def check(self) -> list[str]:
        """Return mistakes in the options, a sentence each; they keep the agent from starting."""
        return [f"input {self.name!r}: {mistake}" for mistake in self._mistakes()]

    @final
    def obstacles(self) -> list[str]:
        """Return temporary obstacles of this machine, a sentence each; the agent starts and retries."""
        return [f"input {self.name!r}: {obstacle}" for obstacle in self._obstacles()]

    def _mistakes(self) -> Iterable[str]:
        """Yield sentences for `check` without the input's name: fault; remedy."""
        return ()

    def _obstacles(self) -> Iterable[str]:
        """Yield sentences for `obstacles` without the input's name."""
        return ()

    @abstractmethod
    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Accept readings until `stopping`, then answer or store the rest."""


class MappedOptions(HasMapping, InputOptions, kw_only=True):
    """Options of inputs whose payloads may be mapped. deploy/reference.toml says what each means."""

    map: NamedMap = None
    preset: NamedPreset = None


class LineOptions(MappedOptions, kw_only=True):
    """Options of line formats; with a mapping each line is a payload. deploy/reference.toml says what each
    means.
    """

    format: Format = "ndjson"
    precision: Precision = "ns"
    device_tag: str = "host"

    def line_problems(self) -> Iterator[str]:
        """Yield faults of the format: fault; remedy."""
        if self.mapping is not None and self.format != "ndjson":
            yield f'format = "{self.format}" stands beside a mapping of JSON or text; leave it out'
        yield from self.map_problems(has_topic=False)

    def parser(self, domain: str) -> LineParser:
        if self.mapping is not None:
            from agent.leaf.inputs.shared.mapped import MappedParser

            return MappedParser(self.mapping, domain)
        return make_parser(self.format, domain, precision=self.precision, device_tag=self.device_tag)


def url_problem(url: str, schemes: Container[str], example: str) -> str | None:
    """Return why the option `url` is unusable (scheme, host, user), or None. Never quotes a possible
    password.
    """
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
    """Return the mistake of a missing extra, or []."""
    if all(find_spec(module) is not None for module in modules):
        return []
    return [f'needs the extra {extra}; install it with: pip install "petiole[{extra}]"']
