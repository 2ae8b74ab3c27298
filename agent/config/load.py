"""Converts each key of a configuration separately, so that all problems show.

A problem is `key.path: value; remedy`; tables of a list count from 1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from agent.base.files import place
from agent.config.checks import check
from agent.config.expected import (
    also_meant,
    header_of,
    is_struct,
    key_below,
    metadata,
    nearest,
    one_of,
    remedy_of,
    row_of,
    shown_value,
)
from agent.config.files import UnsetError, directory_of, expanded, hidden, placed, placed_pattern, read_whole
from agent.config.schema import Config
from agent.config.values import (
    FILES,
    ConfigError,
    Linger,
    Problem,
    RestAfter,
    Seconds,
    Size,
    SyncInterval,
    UnusableTypeError,
)
from agent.mapping.schema import NAMES_MAP, NAMES_PRESET, Map

_MAY_HOLD_SECRETS: Final = ("_file", "tls_key", "command")
"""Endings of keys whose values are hidden."""


def load(path: Path, inputs: Mapping[str, type[Struct]], text: str | None = None) -> Config:
    """Read and check a file (or `text`) with fragments; `inputs` maps types to options. Raises `ConfigError`
    with every problem.
    """
    table, places = read_whole(path, text)
    return parse(table, inputs, places, directory_of(path))


def load_map(path: Path, name: str) -> Map:
    """Return a `[[map]]` of a file, whose other tables are not checked. Raises `ConfigError`."""
    table, _ = read_whole(path)
    reader = _Reader(directory_of(path))
    reader.root({"map": table.get("map", [])})
    key = "map"
    if name in reader.maps:
        problems = reader.problems
    else:
        known = ", ".join(reader.maps) or "none"
        problems = [
            *reader.problems,
            Problem(key, f'"{name:.60}" is not there', f"take one of: {known}"),
        ]
    wrong = [problem for problem in problems if problem.key.startswith(key)]
    if wrong:
        raise ConfigError.of(wrong, [])
    return reader.maps[name]


def parse(
    table: Mapping[str, Any],
    inputs: Mapping[str, type[Struct]],
    places: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Config:
    """Check parsed tables; `places` has fragment keys, `directory` anchors relative paths. Raises
    `ConfigError`.
    """
    reader = _Reader(directory)
    table = dict(table)
    tables = table.pop("input", [])
    config = reader.root(table)
    config.input = reader.inputs(tables, inputs)
    if directory is not None and (config.nats.extra or config.nats.remote):
        from agent.config.server_overlay import placed_files  # not held in memory where nothing is added

        config.nats.extra = placed_files(config.nats.extra, directory)
        config.nats.remote = placed_files(config.nats.remote, directory)
    reported = {problem.key for problem in reader.problems}
    problems = reader.problems + [problem for problem in check(config) if problem.key not in reported]
    if problems:
        shown = [placed(_hidden(problem), places or {}) for problem in problems]
        raise ConfigError.of(shown, [options for options in config.input if options is not None])
    return config


def _hidden(problem: Problem) -> Problem:
    return Problem(problem.key, hidden(problem.stood), hidden(problem.remedy))


@functools.cache
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Return a Struct's fields, cached because slow."""
    return fields(kind)


class _Reader:
    """Reads tables into Structs and collects problems."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.maps: dict[str, Map] = {}
        self.problems: list[Problem] = []

    def root(self, table: dict[str, Any]) -> Config:
        """Return the configuration without inputs, usable despite problems."""
        values = self._values(Config, table, "")
        self.maps = {map_.name: map_ for map_ in values.get("map", ()) if map_ is not None}
        return Config(**{"domain": "unnamed", **values})

    def inputs(self, tables: object, kinds: Mapping[str, type[Struct]]) -> list[Any]:
        """Return options of inputs, None for unreadable ones."""
        return [self._input(table, key, kinds) for key, table in self._tables(tables, "input")]

    def _input(self, table: dict[str, Any], key: str, kinds: Mapping[str, type[Struct]]) -> Any:
        kind = table.pop("type", None)
        if not isinstance(kind, str):
            stood = "is missing" if kind is None else f"{shown_value(kind)} is not a type of input"
            self._tell(f"{key}.type", stood, f"give {one_of(kinds)}")
            return None
        try:
            options = kinds[kind]
        except UnusableTypeError as error:
            self._tell(f"{key}.type", error.stood, error.remedy)
            return None
        return self._struct(options, table, key, also=("type",))

    def _struct(self, kind: type[Struct], table: object, key: str, also: Iterable[str] = ()) -> Any:
        if not isinstance(table, dict):
            self._tell(
                key,
                f"{shown_value(table)} is not a table",
                f"write it as [{header_of(key)}] with its keys below",
            )
            return None
        values = self._values(kind, table, key, also)
        if any(field.required and field.name not in values for field in _fields(kind)):
            return None
        return kind(**values)

    def _values(
        self, kind: type[Struct], table: dict[str, Any], key: str, also: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return the attributes that the table sets."""
        known = {field.encode_name: field for field in _fields(kind)}
        meant = {other: name for name, field in known.items() for other in also_meant(field.type)}
        for name in (key_ for key_ in table if key_ not in known):
            near = meant.get(name) if meant.get(name) not in table else None
            remedy = f"did you mean {near}?" if near else nearest(name, [*known, *also])
            self._tell(key_below(key, name), "there is no such key", remedy)
        values: dict[str, Any] = {}
        for name, field in known.items():
            if name in table:
                value = self._value(field, table[name], key_below(key, name))
                if value is not NODEFAULT:
                    values[field.name] = value
            elif field.required:
                self._tell(key_below(key, name), "is missing", remedy_of(field.type, key_below(key, name)))
        return values

    def _value(self, field: FieldInfo, value: object, key: str) -> Any:
        if NAMES_MAP in metadata(field.type) or NAMES_PRESET in metadata(field.type):
            return self._map(value, key, is_preset=NAMES_PRESET in metadata(field.type))
        if is_struct(field.type):
            table = self._struct(field.type, value, key)
            return NODEFAULT if table is None else table
        if (row := row_of(field.type)) is not None:
            return [self._struct(row, table, place) for place, table in self._tables(value, key)]
        try:
            converted = msgspec.convert(expanded(value), field.type, dec_hook=self._hook)
            return self._placed(converted) if FILES in metadata(field.type) else converted
        except UnsetError as error:
            remedy = f"set it where petiole runs, or write $${{{error}}} for that text"
            self._tell(key, f"the variable {error} is not set", remedy)
            return NODEFAULT
        except msgspec.ValidationError:
            shown = "what stands there" if field.name.endswith(_MAY_HOLD_SECRETS) else shown_value(value)
            self._tell(key, f"{shown} cannot be used", remedy_of(field.type, key))
            return NODEFAULT

    def _map(self, value: object, key: str, *, is_preset: bool) -> Map | object:
        """Return the `[[map]]` or preset that a name stands for."""
        if is_preset:
            from agent.mapping import presets  # not held in memory where none is named

            known = {name: Map(name=name, preset=name) for name in presets.names()}
        else:
            known = self.maps
        if isinstance(value, str) and value in known:
            return known[value]
        what = "preset" if is_preset else "[[map]]"
        remedy = "write [[map]] with that name"
        if isinstance(value, str) and known:
            remedy = nearest(value, list(known))
        self._tell(key, f"there is no {what} {shown_value(value)}", remedy)
        return NODEFAULT

    def _hook(self, kind: type, value: object) -> object:
        if kind is Path and isinstance(value, str) and value and "\0" not in value:
            return place(value, self._directory)
        if kind in (Seconds, Linger, RestAfter, SyncInterval):
            return kind.parse(value)
        if kind is Size:
            return Size.parse(value)
        raise TypeError(f"{value!r:.60} is not {kind}")

    def _placed(self, paths: str | list[str]) -> str | list[str]:
        if self._directory is None:
            return paths
        if isinstance(paths, str):
            return placed_pattern(paths, self._directory)
        return [placed_pattern(path, self._directory) for path in paths]

    def _tables(self, value: object, key: str) -> list[tuple[str, dict[str, Any]]]:
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            self._tell(
                key, f"{shown_value(value)} is not a list of tables", f"write each as [[{header_of(key)}]]"
            )
            return []
        return [(f"{key}[{number}]", dict(table)) for number, table in enumerate(value, 1)]

    def _tell(self, key: str, stood: str, remedy: str) -> None:
        self.problems.append(Problem(key, stood, remedy))
