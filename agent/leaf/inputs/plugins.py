"""Loads inputs of other packages by the entry point named after their type.

Entry points are read only for types that are not built in, since that takes 10 ms.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, get_args

from agent.base.logs import listed
from agent.base.metrics import Metrics
from agent.config.expected import unreadable_keys
from agent.config.values import UnusableTypeError
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions, LocalServer
from agent.leaf.intake import Intake

GROUP: Final = "petiole.inputs"
API_VERSION: Final = "1.0"
"""Version of `agent.plugin`: the second number grows with additions, the first with changes and removals."""

_CLASSES: Final[dict[type[InputOptions], type[ConfiguredInput[Any]]]] = {}
"""Loaded input classes by options."""


def load_options(kind: str, built_in: Iterable[str]) -> type[InputOptions]:
    """Return the options class of a package's input. Raises `UnusableTypeError` whatever its
    import raises.
    """
    point = _entry_point(kind, built_in)
    input_class = _input_class(kind, point)
    options = next(_options(input_class), None)
    where = f"{kind!r} of {_package(point)}"
    if options is None:
        raise UnusableTypeError(
            f"{where} has no options",
            f"derive {point.value} from ConfiguredInput[…] of a subclass of InputOptions",
        )
    if (tag := options.__struct_config__.tag) != kind:
        raise UnusableTypeError(
            f"{where} has options of the type {tag!r}", f'write tag="{kind}" at {options.__name__}'
        )
    if keys := unreadable_keys(options):
        raise UnusableTypeError(
            f"{where} has options that a file cannot hold: {listed(keys)}",
            f"let {options.__name__} have types such as str, int, float, bool, Path, Seconds, Size, lists of "
            "these, or a list of Structs",
        )
    _CLASSES[options] = input_class
    return options


def make_input(options: InputOptions, metrics: Metrics, server: LocalServer) -> ConfiguredInput[Any]:
    """Make an input of a type from `load_options`. A constructor's error becomes a mistake of the input."""
    try:
        return _CLASSES[type(options)](options, metrics, server)
    except Exception as error:  # what its constructor does is its own
        return _UnmadeInput(options, metrics, f"{type(error).__name__}: {error!s:.200}")


class _UnmadeInput(ConfiguredInput[InputOptions]):
    """Stands for an input whose constructor failed."""

    def __init__(self, options: InputOptions, metrics: Metrics, why: str) -> None:
        super().__init__(options, metrics)
        self._why = why

    def _mistakes(self) -> Iterator[str]:
        yield f"its class cannot be made ({self._why}); correct the package that brings it"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        raise RuntimeError(self._why)


def _entry_point(kind: str, built_in: Iterable[str]) -> EntryPoint:
    importlib.invalidate_caches()  # a package may have been installed while the agent runs
    found = list(entry_points(group=GROUP, name=kind))
    if len(found) > 1:
        raise UnusableTypeError(
            f"{kind!r} is an input of several packages: {listed(sorted(map(_package, found)))}",
            "uninstall all but one of them",
        )
    if not found:
        installed = sorted({point.name for point in entry_points(group=GROUP)} - set(built_in))
        names = ", ".join(f'"{name}"' for name in [*built_in, *installed])
        raise UnusableTypeError(
            f'"{kind:.60}" is not a type of input',
            f"give one of {names}, or install the package that adds it",
        )
    return found[0]


def _input_class(kind: str, point: EntryPoint) -> type[ConfiguredInput[Any]]:
    where = f"{kind!r} of {_package(point)}"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # what a package does while it is imported is its own
        raise UnusableTypeError(
            f"{where} cannot be imported from {point.value} ({type(error).__name__}: {error!s:.200})",
            "install what the package needs, or a version of it for this petiole, which has version "
            f"{API_VERSION} of agent.plugin",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, ConfiguredInput)):
        raise UnusableTypeError(
            f"{where} is not an input: {point.value} is not a subclass of ConfiguredInput",
            "correct the entry point of the package",
        )
    return loaded


def _options(input_class: type) -> Iterator[type[InputOptions]]:
    """Yield the options classes that a class names in its bases."""
    for class_ in input_class.__mro__:
        for base in class_.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, InputOptions):
                    yield argument


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
