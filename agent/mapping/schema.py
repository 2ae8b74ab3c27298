"""Defines the tables `[[map]]` and `[[map.record]]` of the configuration, and presets. No I/O."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Meta, Struct

TimeFormat = str
NAMES_MAP: Final = Meta(extra={"names": "map"})
"""Marks a key of an input that holds the name of a `[[map]]`."""
NAMES_PRESET: Final = Meta(extra={"names": "preset"})
"""Marks a key of an input that holds the name of a preset."""


class MapRecord(Struct, forbid_unknown_fields=True, kw_only=True):
    """Says where the records of a payload are, and how each becomes readings. A key that is absent here has
    the value of its `[[map]]`."""

    topic: str | None = None
    except_topics: list[str] | None = None
    when: str | None = None
    at: str | None = None
    each: str | None = None
    expand: Literal["senml"] | None = None
    device: str | None = None
    metric: str | None = None
    value: str | None = None
    values: str | None = None
    take: list[str] | None = None
    leave: list[str] | None = None
    tags: dict[str, str] | None = None
    unit: str | None = None
    time: str | None = None
    time_nanos: str | None = None
    time_format: str | None = None
    zone: str | None = None
    words: dict[str, Any] | None = None
    numbers: bool | None = None
    no_value: list[str] | None = None


class Map(MapRecord, forbid_unknown_fields=True, kw_only=True):
    """Turns payloads of other shapes into readings (role leaf). Inputs and their topics name it. With a
    `preset` it begins with a shipped mapping. Each key given here replaces that of the preset; the preset's
    records keep keys of their own."""

    name: str
    about: str = ""
    preset: str | None = None
    topics: list[str] | None = None
    empty: Literal["refuse", "skip"] | None = None
    record: list[MapRecord] = []
