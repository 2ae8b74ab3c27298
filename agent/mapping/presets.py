"""Loads shipped mappings, and completes a `[[map]]` with its preset."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import fields, replace

from agent.mapping.schema import Map

_FOLDER: Final = Path(__file__).parent / "presets"
_OWN: Final = ("name", "about", "preset", "record")


class _Preset(Map, kw_only=True):
    """A preset's file, which names itself."""

    name: str = ""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def load(name: str) -> Map:
    """Return a preset. Raises `KeyError` for an unknown name."""
    if name not in names():
        raise KeyError(name)
    table = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    preset = msgspec.convert(table, _Preset)
    preset.name = name
    return preset


def complete(given: Map) -> Map:
    """Return a map whose absent keys are those of its preset; the preset's records keep their own. A map
    of an unknown preset, which `compile_map` refuses, stays as it is.
    """
    if given.preset not in names():
        return given
    preset = load(given.preset)
    return replace(preset, name=given.name, **_given(given), record=[*preset.record, *given.record])


def _given(map_: Map) -> dict[str, Any]:
    return {
        field.name: value
        for field in fields(map_)
        if field.name not in _OWN and (value := getattr(map_, field.name)) is not None
    }
