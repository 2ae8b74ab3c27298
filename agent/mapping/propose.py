"""Proposes a mapping for a payload by names and ranges that senders use. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import fields

from agent.mapping.compiled import MapError, MappingError, compile_map
from agent.mapping.payload import PayloadError, decode
from agent.mapping.presets import names
from agent.mapping.schema import Map
from agent.mapping.times import TimeError, reader, zone_of

_TIMES: Final = ("timestamp", "time", "ts", "t", "datetime", "date", "at", "receivedat", "timeinseconds")
_DEVICES: Final = (
    *("deveui", "deviceid", "serial", "serialnumber", "device", "devicename", "mac", "sn", "clientid"),
    *("node", "station", "asset", "assetid", "machine", "src", "source"),
)
_METRICS: Final = (
    "id",
    "name",
    "metric",
    "n",
    "tag",
    "tagname",
    "key",
    "signal",
    "variable",
    "alias",
    "sensor",
)
_VALUES: Final = ("v", "value", "val", "doublevalue")
_HOLDERS: Final = ("object", "values", "data", "payload", "fields", "params")
_UNITS: Final = ("u", "unit", "units", "uom")
_QUALITIES: Final = ("q", "quality", "statuscode")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?\Z").match
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z").match
_MAX_LEVELS: Final = 4
_MAX_DIGITS: Final = 19
"""Digits of a time in nanoseconds."""
_SHARE: Final = 0.8
"""Share of the numbers of an object that one of its members must hold to be the readings."""
_RANGES: Final = (("s", 10**9), ("ms", 10**12), ("us", 10**15), ("ns", 10**18))
_PLAUSIBLE: Final = 4
"""Largest multiple of 10^9 s that is a time, the year 2096."""
_WORDS: Final = (
    ("ON", "OFF"),
    ("on", "off"),
    ("open", "closed"),
    ("online", "offline"),
    ("Online", "Offline"),
)
_TRUE: Final = {text: pair for pair in _WORDS for text in pair}

Steps = tuple[str, ...]


class Proposal(NamedTuple):
    """A mapping with notes, a sentence each."""

    map: Map
    notes: list[str]

    def as_toml(self) -> str:
        """Return the `[[map]]` with its notes as comments."""
        keys = [(field.name, getattr(self.map, field.name)) for field in fields(self.map)]
        rows = [f"{name} = {_toml(value)}" for name, value in keys if value not in (None, "", [])]
        rows.sort(key=lambda row: not row.startswith("name"))
        return "\n".join(["[[map]]", *rows, *(f"# {note}" for note in self.notes)]) + "\n"


def fitting_presets(payload: bytes, topic: str) -> list[str]:
    """Return the presets that give readings of a payload without odd members."""
    found = []
    for name in names():
        try:
            mapped = compile_map(Map(name=name, preset=name), "domain").apply(payload, 0, topic)
        except (MappingError, MapError):
            continue
        if mapped.count and not mapped.odd:
            found.append(name)
    return found


def propose(payload: bytes, topic: str = "", name: str = "proposed") -> Proposal | None:
    """Return a mapping that gives readings of a payload, or None. `topic` names what the payload does not."""
    try:
        value, _ = decode(payload)
    except PayloadError:
        return None
    proposal = _of_members(value, name) if isinstance(value, dict | list) else _of_bare(value, name)
    _name_by_topic(proposal, topic)
    try:
        mapped = compile_map(proposal.map, "domain", has_topic=bool(topic)).apply(payload, 0, topic)
    except (MappingError, MapError):
        return None
    if any(_is_number(json.loads(line)["value"]) for line in mapped.payload.splitlines()):
        proposal.notes.append("some values are numbers in text: numbers = true reads them as numbers")
    if mapped.odd:
        proposal.notes.append(f"odd: {mapped.reason()}; leave leaves such members out")
    return proposal if mapped.count or mapped.no_value else None


def _of_bare(value: Any, name: str) -> Proposal:
    map_ = Map(name=name)
    if isinstance(value, str) and value in _TRUE:
        on, off = _TRUE[value]
        map_.words = {on: True, off: False}
    return Proposal(map_, [])


def _of_members(payload: Any, name: str) -> Proposal:
    map_, notes = Map(name=name), list[str]()
    at = _records(payload)
    record = payload
    if at is not None:
        map_.at = _path(at) if at else "@"
        record = next(one for one in _at(payload, at) if isinstance(one, dict))
    _say_value(map_, record, is_one_of_many=at is not None)
    _say_time(map_, record, payload, at is not None, notes)
    _say_device(map_, record, payload, at is not None, notes)
    return Proposal(map_, notes)


def _records(payload: Any) -> Steps | None:
    """Return the steps to the array of objects that holds most numbers, if that is most of the payload."""
    if isinstance(payload, list):
        return () if any(isinstance(one, dict) for one in payload) else None
    total = _numbers(payload)
    for steps, value in _members(payload):
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            has_value = any(key.lower() in _VALUES for key in value[0])
            if has_value and _numbers(value) >= _SHARE / 2 * total:
                return steps
    return None


def _say_value(map_: Map, record: Any, *, is_one_of_many: bool) -> None:
    value = _named(record, _VALUES, depth=3)
    metric = _named(record, _METRICS, depth=1, kind=str)
    direct = isinstance(record, dict) and value is not None and (is_one_of_many or len(value) == 1)
    if direct and value is not None and (metric is not None or _numbers(record) <= 3):
        map_.value = _path(value)
        if metric is not None:
            map_.metric = f"{{{_path(metric)}}}"
        if (unit := _named(record, _UNITS, depth=2, kind=str)) is not None:
            map_.unit = f"{{{_path(unit)}}}"
        if (quality := _named(record, _QUALITIES, depth=1)) is not None:
            map_.tags = {"quality": f"{{{_path(quality)}}}"}
        return
    steps = _densest(record)
    if steps:
        map_.values = _path(steps)


def _densest(record: Any) -> Steps:
    """Return the steps to the decoded object of a record, or that with nearly all of its numbers."""
    for steps, value in _members(record):
        if isinstance(value, dict) and "decoded" in steps[-1].lower():
            return steps
    steps = ()
    while isinstance(record, dict):
        total = _numbers(record)
        key = max(record, key=lambda one: _numbers(record[one]), default=None)
        if key is None or not isinstance(record[key], dict) or _numbers(record[key]) < _SHARE * total:
            key = None if steps else _payload_member(record)
        if key is None:
            break
        record, steps = record[key], (*steps, key)
    return steps


def _payload_member(record: dict[str, Any]) -> str | None:
    """Return a member whose name says that it holds the values."""
    return next(
        (key for key, value in record.items() if isinstance(value, dict) and key.lower() in _HOLDERS), None
    )


def _say_time(map_: Map, record: Any, payload: Any, apart: bool, notes: list[str]) -> None:
    for where, prefix in ((record, ""), *([(payload, "$.")] if apart else [])):
        for steps, value in _members(where):
            if steps[-1].lower().replace("_", "") in _TIMES and (form := _time_form(value)) is not None:
                map_.time, map_.time_format = prefix + _path(steps), None if form == "local" else form
                if form == "rfc3339":
                    map_.time_format = None
                if form == "local":
                    map_.zone = "UTC"
                    notes.append("its time has no offset: set zone to that of the sender")
                nanos = _named(_at(where, steps[:-1]), ("offsetinnanos", "nanos", "nanoseconds"), depth=1)
                if nanos is not None and form == "s":
                    map_.time_nanos = prefix + _path((*steps[:-1], *nanos))
                return
    notes.append("no time was found in it: readings get the time of arrival")


def _time_form(value: Any) -> str | None:
    """Return the format of a time, `local` for RFC 3339 without offset, or None."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return next((form for form, unit in _RANGES if unit <= value < _PLAUSIBLE * unit), None)
    for form, zone in (("rfc3339", None), ("local", zone_of("UTC"))):
        try:
            reader("rfc3339", zone)(value, None)
        except TimeError:
            continue
        return form
    return None


def _say_device(map_: Map, record: Any, payload: Any, apart: bool, notes: list[str]) -> None:
    for where, prefix in ((record, ""), *([(payload, "$.")] if apart else [])):
        steps = _named(where, _DEVICES, depth=3, kind=str)
        if steps is not None:
            map_.device = f"{{{prefix}{_path(steps)}}}"
            return
    notes.append("no device was found in it: without a topic it is the domain")


def _name_by_topic(proposal: Proposal, topic: str) -> None:
    map_, levels = proposal.map, topic.split("/") if topic else []
    if map_.device is None and len(levels) > 1:
        map_.device = "{2}"
        proposal.notes[:] = [note for note in proposal.notes if "device" not in note]
        proposal.notes.append(f"the device is the second level of the topic, {levels[1]}")
    is_bare = map_.at is None and map_.values is None and map_.value in (None, "value", "v")
    if map_.metric is None and len(levels) > 2 and is_bare and map_.value is not None:
        map_.metric = "{3+}"
    if map_.metric is None and map_.value is not None and not levels:
        map_.metric = "value"


def _named(where: Any, wanted: tuple[str, ...], *, depth: int, kind: type = object) -> Steps | None:
    """Return the steps to the member whose name is first in `wanted`, the shallowest before others."""
    best: tuple[int, int, Steps] | None = None
    for steps, value in _members(where):
        plain = steps[-1].lower().replace("_", "").replace("-", "")
        if len(steps) > depth or plain not in wanted or not isinstance(value, kind) or value == "":
            continue
        if isinstance(value, dict | list):
            continue
        rank = (wanted.index(plain), len(steps), steps)
        best = rank if best is None or rank[:2] < best[:2] else best
    return None if best is None else best[2]


def _members(where: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield all members of nested objects, outer members first."""
    if not isinstance(where, dict) or len(steps) >= _MAX_LEVELS:
        return
    for key, value in where.items():
        yield (*steps, key), value
    for key, value in where.items():
        yield from _members(value, (*steps, key))


def _numbers(value: Any) -> int:
    """Count the numbers and truth values in a value."""
    if isinstance(value, dict):
        return sum(map(_numbers, value.values()))
    if isinstance(value, list):
        return sum(map(_numbers, value))
    return isinstance(value, int | float)


def _is_number(value: Any) -> bool:
    """Tell whether a value is text that `numbers` reads."""
    return type(value) is str and _NUMBER(value) is not None


def _at(value: Any, steps: Steps) -> Any:
    for step in steps:
        value = value[step]
    return value


def _path(steps: Steps) -> str:
    return ".".join(step if _PLAIN(step) else json.dumps(step) for step in steps)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
