"""Compiles a mapping, and converts payloads to readings by it. No I/O.

A member that can't be a reading is odd: it is named with its reason and never costs the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from fnmatch import translate
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from agent import contract
from agent.mapping.paths import (
    MISSING,
    Path,
    PathError,
    Place,
    Steps,
    Template,
    fits,
    levels_of,
    split_members,
)
from agent.mapping.payload import NotJson, PayloadError, decode
from agent.mapping.presets import complete, names
from agent.mapping.schema import Map, MapRecord
from agent.mapping.senml import resolve
from agent.mapping.times import UNITS, OffsetError, Stamp, TimeError, reader, zone_of

MAX_LEVELS: Final = 8
"""Levels of nested members."""
MAX_READINGS: Final = contract.MAX_BATCH_READINGS
"""Readings of one payload, which is a batch's."""
MAX_RECORDS: Final = 2 * MAX_READINGS
MAX_MEMBERS: Final = 500_000
"""Members looked at; records may share an object of the payload, and each looks through it."""
MAX_BYTES: Final = 900 * 1024
"""Bytes of one payload's readings, which repeat its tags; a message of NATS has them, compressed or not."""
_MAX_ODD: Final = 100
"""Odd members named; further ones are counted."""
_SHOWN: Final = 3
_MAX_RECORDS: Final = 50
_MAX_GLOBS: Final = 200
_MAX_NAMES: Final = 4096
"""Cached member names; a payload's own names must not fill the memory."""
_NO_VALUE: Final = ("", "nan", "NaN")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z").match
_control = re.compile(r"[\x00-\x1f\x7f]").search
_MAX_DIGITS: Final = 64
UNKNOWN: Final = "unknown"
"""Stands for a zone where times without offset are no times."""
LOCAL_TIME: Final = "local_time"
"""Tag of readings with a local time that a clock change repeats or skips."""

_SHARED: Final = ("device", "unit", "tags", "time", "time_nanos", "time_format", "zone")
"""Keys that decide about device, time and tags of a record."""
_encoder = msgspec.json.Encoder()


class MapProblem(Struct, frozen=True):
    """A fault of a mapping: its key, what stands there, and the remedy."""

    key: str
    stood: str
    remedy: str


class MapError(ValueError):
    """A mapping can't be used."""

    def __init__(self, problems: list[MapProblem]) -> None:
        super().__init__("; ".join(f"{one.key}: {one.stood}; {one.remedy}" for one in problems))
        self.problems = problems


class MappingError(ValueError):
    """A payload as a whole can't be mapped; the text has the reason."""


class Mapped(Struct):
    """Readings of one payload as NDJSON of `count` lines, and everything else that it held."""

    payload: bytes
    count: int
    odd: list[tuple[str, str]] = []
    """Name and reason of members that are no readings."""
    more_odd: int = 0
    """Further ones."""
    no_value: int = 0
    """Members without a value, such as `null`."""
    is_dated: bool = True
    """Whether each reading has a time of its own."""

    @property
    def odd_count(self) -> int:
        """Return the number of odd members."""
        return len(self.odd) + self.more_odd

    def reason(self) -> str:
        """Return why members are odd, in a sentence."""
        shown = "; ".join(f"{name}: {reason}" if name else reason for name, reason in self.odd[:_SHOWN])
        more = self.odd_count - min(len(self.odd), _SHOWN)
        rest = f"; and {more} more" if more else ""
        return f"{shown}{rest} ({self.count} readings of the payload are stored)"


class _Row(Struct, gc=False, omit_defaults=True):
    """A reading; encoded in this order it decodes fastest."""

    ts: str
    device: str
    metric: str
    value: Any
    tags: dict[str, str] | None = None


class _Run:
    """The findings in one payload."""

    __slots__ = (
        "is_dated",
        "is_strict",
        "left",
        "mark",
        "members",
        "more_odd",
        "no_value",
        "nothing",
        "now_ns",
        "odd",
        "records",
        "rows",
        "size",
    )

    def __init__(self, now_ns: int, mark: str | None, is_strict: bool) -> None:
        self.now_ns, self.mark, self.is_strict = now_ns, mark, is_strict
        self.rows: list[_Row] = []
        self.records: dict[tuple[str, int], _Record | None] = {}
        """By what they are made of, and the object's identity."""
        self.odd: list[tuple[str, str]] = []
        self.nothing: list[str] = []
        self.no_value = self.more_odd = self.size = self.members = 0
        self.is_dated = True
        self.left = False
        """Whether the mapping left members out."""

    def refuse(self, name: str, reason: str) -> None:
        if len(self.odd) < _MAX_ODD:
            self.odd.append((name[:80], reason[:200]))
        else:
            self.more_odd += 1


class _Record(Struct):
    """The common parts of the readings of one record."""

    ts: str
    device: str
    tags: dict[str, str] | None
    place: Place
    cost: int


class _Kind:
    """One compiled `[[map.record]]`."""

    def __init__(self, given: MapRecord, domain: str, *, has_topic: bool) -> None:
        self.problems: list[MapProblem] = []
        self._domain = domain
        self._topic = self._filter("topic", given.topic, has_topic)
        self._except = [
            levels
            for topic in given.except_topics or ()
            if (levels := self._filter("except_topics", topic, has_topic)) is not None
        ]
        self._when = self._path("when", given.when)
        at, self._by_member = split_members(given.at or "@")
        self._at = self._path("at", at) or Path("@")
        self.at_text = given.at or "the payload"
        self._each = self._path("each", given.each)
        if self._each is not None and self._each.of_payload:
            self._tell("each", "begins at the payload", "write a path that begins at the record of at")
        self.is_senml = given.expand == "senml"
        self._device = self._template("device", given.device)
        self._metric = self._template("metric", given.metric)
        self._unit = self._template("unit", given.unit)
        self._tags = self._all_tags(given.tags or {})
        if given.value is not None and given.values is not None:
            self._tell("values", "stands beside value", "keep the one that is meant")
        self._value = self._path("value", given.value)
        self._values = self._path("values", given.values or "@") or Path("@")
        if self._value is not None and self._metric is None and not has_topic:
            self._tell("metric", "is missing, and the input has no topic to name it", 'write it as "{name}"')
        self._take = self._globs("take", given.take)
        self._leave = self._globs("leave", given.leave) or (lambda name: False)
        self._words = self._all_words(given.words or {})
        self._numbers = bool(given.numbers)
        self._no_value = frozenset(_NO_VALUE if given.no_value is None else given.no_value)
        self._time = self._path("time", given.time)
        self._nanos = self._path("time_nanos", given.time_nanos)
        self._read_time = self._time_reader(given)
        self._is_zone_unknown = given.zone == UNKNOWN
        self._nothing_at = f"nothing at {self.at_text}"
        self._nothing_in = f"nothing at {(self._values if self._value is None else self._value).text}"
        path = self._values if self._value is None else self._value
        is_plain = not path.of_payload and not path.of_parent and bool(path.steps) and self._each is None
        self._member = path.steps[0] if is_plain and path.steps and self._at.steps == () else None
        """The member of a payload without which there is no reading."""
        self._shared = repr([getattr(given, key) for key in _SHARED])
        self._spoken_for = frozenset(self._used())
        self._names: dict[str, tuple[bool, bool, str | None, str | None]] = {}
        for template in (self._device, self._metric, self._unit, *self._tags.values()):
            if template is not None and template.has_topic and not has_topic:
                self._tell(
                    "device", "a template has a part of the topic, which this input has not", "name a path"
                )
                break

    def _tell(self, key: str, stood: str, remedy: str) -> None:
        self.problems.append(MapProblem(key, stood, remedy))

    def _path(self, key: str, text: str | None) -> Path | None:
        if text is None:
            return None
        try:
            return Path(text)
        except PathError as error:
            stood, _, remedy = str(error).partition("; ")
            self._tell(key, stood, remedy)
            return None

    def _filter(self, key: str, topic: str | None, has_topic: bool) -> list[str] | None:
        if topic is None:
            return None
        if not topic or "#" in topic.split("/")[:-1]:
            self._tell(key, f'"{topic:.80}" is not a topic filter', "write it as plant/+/#")
        if not has_topic and key == "topic":
            self._tell(key, "stands with an input that has no topics", "leave it out")
        return topic.split("/")

    def _template(self, key: str, text: str | None) -> Template | None:
        if text is None:
            return None
        try:
            template = Template(text)
        except PathError as error:
            stood, _, remedy = str(error).partition("; ")
            self._tell(key, stood, remedy)
            return None
        if template.constant is not None and (wrong := _name_fault(template.constant)) is not None:
            self._tell(key, f"{template.constant!r:.60} {wrong}", "choose another text")
        return template

    def _all_tags(self, given: dict[str, str]) -> dict[str, Template]:
        tags = {}
        for name, text in given.items():
            if (wrong := _name_fault(name)) is not None:
                self._tell("tags", f"the name {name!r:.60} {wrong}", "choose another name")
            if (template := self._template(f"tags.{name:.60}", text)) is not None:
                tags[name] = template
        if len(tags) > contract.MAX_TAGS - 4:
            self._tell("tags", f"{len(tags)} tags are too many", f"name at most {contract.MAX_TAGS - 4}")
        return tags

    def _all_words(self, given: dict[str, Any]) -> dict[str, Any]:
        for word, meaning in given.items():
            fine = type(meaning) in (bool, str) or (type(meaning) in (int, float) and math.isfinite(meaning))
            if not fine or (type(meaning) is int and abs(meaning) > contract.MAX_INT):
                self._tell(
                    "words", f"{word!r:.60} means {meaning!r:.60}", "write true, false, a number or text"
                )
        return given

    def _globs(self, key: str, given: list[str] | None) -> Callable[[str], object] | None:
        if not given:
            return None
        if len(given) > _MAX_GLOBS or any(not 1 <= len(glob) <= contract.MAX_NAME for glob in given):
            self._tell(key, "has an empty or long pattern, or too many", f"write at most {_MAX_GLOBS} names")
            return None
        # A star after a star adds nothing but time.
        texts = {re.sub(r"\*+", "*", glob) for glob in given}
        if any(glob.count("*") > 8 for glob in texts):
            self._tell(key, "has a pattern with more than 8 stars", "write a shorter pattern")
            return None
        return re.compile("|".join(translate(glob) for glob in sorted(texts))).match

    def _time_reader(self, given: MapRecord) -> Callable[[Any, Any], Stamp] | None:
        if given.time is None:
            for key in ("time_nanos", "time_format", "zone"):
                # A preset's or map's own may stand for other records.
                if getattr(given, key) is not None and isinstance(given, Map) and not given.record:
                    self._tell(key, "has no time to go with", "set time, or leave it out")
            return None
        format_ = given.time_format or "rfc3339"
        if given.time_nanos is not None and format_ not in UNITS:
            self._tell("time_nanos", f'goes with a number, and time_format is "{format_:.40}"', 'write "s"')
        try:
            return reader(format_, None if given.zone in (None, UNKNOWN) else zone_of(given.zone))
        except TimeError as error:
            stood, _, remedy = str(error).partition("; ")
            self._tell("zone" if "time zone" in stood else "time_format", stood, remedy)
            return None

    def _used(self) -> Iterator[str]:
        """Yield names of members that say device, metric, unit, tag or time of the values beside them."""
        paths = [path for path in (self._time, self._nanos) if path is not None]
        for template in (self._device, self._metric, self._unit, *self._tags.values()):
            paths += template.paths if template is not None else []
        base = self._base(self._values)
        for path in paths:
            steps = self._base(path)
            if (
                base is not None
                and steps is not None
                and len(steps) > len(base)
                and steps[: len(base)] == base
            ):
                yield "_".join(str(step) for step in steps[len(base) :])

    def _base(self, path: Path) -> Steps | None:
        """Return the steps from the payload to a value, or None where they are not plain."""
        if path.steps is None or path.of_payload:
            return path.steps
        if path.of_parent:
            return None
        if self._at.steps is None or self._by_member or self._each is not None:
            # Records of a list: their paths compare among themselves only.
            return None if path.steps is None else ("\0record", *path.steps)
        return (*self._at.steps, *path.steps)

    def apply(self, run: _Run, whole: Place) -> None:
        """Add the readings of a payload, which `whole` has as its record."""
        payload, topic, levels, memo = whole.payload, whole.topic, whole.levels, whole.memo
        if self._topic is not None and not fits(self._topic, levels):
            return
        if self._except and any(fits(topic, levels) for topic in self._except):
            return
        if self._member is not None and type(payload) is dict and self._member not in payload:
            run.nothing.append(self._nothing_in)
            return
        if self._when is not None and not self._when.at(whole):
            return
        found = self._at.look(whole)
        if found is MISSING:
            run.nothing.append(self._nothing_at)
            return
        if found is None:
            run.no_value += 1
            return
        if self.is_senml:
            found = resolve(found, run.now_ns, run.refuse)
        if self._by_member:
            if type(found) is not dict:
                run.nothing.append(f"no object at {self.at_text}")
                return
            for key, record in islice(found.items(), MAX_RECORDS):
                self._spread(run, Place(record, payload, topic, levels, key, memo), key or '""')
        elif type(found) is list and self._at.text != "$":
            for number, record in enumerate(islice(found, MAX_RECORDS)):
                at = str(number)
                self._spread(run, Place(record, payload, topic, levels, at, memo), f"record {at}")
        else:
            place = whole if found is payload else Place(found, payload, topic, levels, "", memo)
            self._spread(run, place, "")
            return
        if not found and self._at.steps is None:
            run.nothing.append(f"nothing at {self.at_text}")  # a filter that fits none
        elif not found:
            run.no_value += 1
        elif len(found) > MAX_RECORDS:
            run.refuse(f"{len(found) - MAX_RECORDS} records", f"beyond {MAX_RECORDS} records of a payload")

    def _spread(self, run: _Run, place: Place, name: str) -> None:
        """Take a record of `at`, or those of `each` in it."""
        if self._each is None:
            self._record(run, place, name)
            return
        found = self._each.look(place)
        if found is MISSING and place.record is not None:
            if name:
                run.refuse(name, f"nothing at {self._each.text}")
            else:
                run.nothing.append(f"nothing at {self._each.text}")
            return
        if found is MISSING or found is None or (found == [] and self._each.steps is not None):
            run.no_value += 1
            return
        if type(found) is not list:
            found = [found]
        for number, record in enumerate(islice(found, MAX_RECORDS)):
            inner = replace(place, record=record, parent=place.record, key=place.key or str(number))
            self._record(run, inner, f"{name} {number}".strip())
        if len(found) > MAX_RECORDS:
            run.refuse(f"{len(found) - MAX_RECORDS} records", f"beyond {MAX_RECORDS} records of a payload")

    def _record(self, run: _Run, place: Place, name: str) -> None:
        path = self._values if self._value is None else self._value
        value = path.look(place)
        if value is MISSING:
            if name and place.record is not None:
                run.refuse(name, f"nothing at {path.text}")
            elif place.record is None:
                run.no_value += 1
            else:
                run.nothing.append(self._nothing_in)
            return
        if value is None or value == {} or value == []:
            run.no_value += 1
            return
        if name or type(place.record) is not dict:
            record = self._common(run, place, name)
        else:
            # Kinds that read one object have one device, time and tags, often.
            shared = self._shared, id(place.record)
            if shared not in run.records:
                run.records[shared] = self._common(run, place, name)
            record = run.records[shared]
        if record is None:
            return
        if self._value is not None or type(value) is not dict:
            member = str(path.steps[-1]) if path.steps else "value"
            self._single(run, record, value, member, name)
        else:
            self._walk(run, record, value, "", 1, taken=self._take is None)

    def _common(self, run: _Run, place: Place, name: str) -> _Record | None:
        """Return time, device and tags of a record, or None if one can't be."""
        device = self._domain if self._device is None else self._device.fill(place, "")
        if device is None or (wrong := _name_fault(device)) is not None:
            run.refuse(name or "device", "it names no device" if device is None else f"its device {wrong}")
            return None
        tags: dict[str, str] = {}
        for tag, template in self._tags.items():
            if (text := template.fill(place, "")) is not None:
                self._tag(run, tags, tag, text)
        if self._unit is not None and (text := self._unit.fill(place, "")) is not None:
            self._tag(run, tags, "unit", text)
        ts = None
        if self._time is not None and self._read_time is not None:
            value = self._time.at(place)
            if value is not None and value != "":
                try:
                    ts, mark = self._read_time(value, None if self._nanos is None else self._nanos.at(place))
                    if mark is not None:
                        tags[LOCAL_TIME] = mark
                except TimeError as error:
                    if not (self._is_zone_unknown and isinstance(error, OffsetError)):
                        run.refuse(name or "time", str(error))
                        return None
        if ts is None:
            ts = contract.machine_time(run.now_ns)
            run.is_dated = False
            if run.mark is not None:
                tags[run.mark] = "true"
        cost = len(device) + 100 + sum(len(name) + len(text) for name, text in tags.items())
        return _Record(ts, device, tags or None, place, cost)

    def _tag(self, run: _Run, tags: dict[str, str], name: str, text: str) -> None:
        if len(text) > contract.MAX_TEXT:
            run.refuse(f"tag {name}", f"longer than {contract.MAX_TEXT} characters")
        elif not run.is_strict and not _is_utf8(text):
            run.refuse(f"tag {name}", "not UTF-8")
        else:
            tags[name] = text

    def _single(self, run: _Run, record: _Record, value: Any, member: str, name: str) -> None:
        if self._metric is not None:
            metric = self._metric.constant or self._metric.fill(record.place, member)
        else:
            metric = record.place.topic or member
        if metric is None or (wrong := _name_fault(metric)) is not None:
            run.refuse(name or member, "it names no metric" if metric is None else f"its metric {wrong}")
        elif type(value) is dict:
            run.refuse(name or member, "an object where a value was expected; name it in values")
        else:
            self._put(run, record, metric, value, name or member)

    def _walk(
        self, run: _Run, record: _Record, members: dict[str, Any], before: str, level: int, *, taken: bool
    ) -> None:
        run.members += len(members)
        if run.members > MAX_MEMBERS:
            run.refuse(before, f"beyond {MAX_MEMBERS} members of a payload")
            run.more_odd += len(members) - 1
            return
        known = self._names
        for member, value in members.items():
            name = before + member
            seen = known.get(name)
            if seen is None:
                seen = self._look_at(name, known)
            is_left, is_taken, metric, wrong = seen
            if is_left:
                run.left = True
                continue
            kind = type(value)
            if kind is dict or kind is list:
                self._nested(run, record, name, value, level, taken=taken or is_taken)
            elif not (taken or is_taken):
                run.left = True
            elif metric is not None:
                self._put(run, record, metric, value, name)
            elif wrong is not None:
                run.refuse(name, wrong)
            else:
                self._named(run, record, name, value)

    def _nested(self, run: _Run, record: _Record, name: str, value: Any, level: int, *, taken: bool) -> None:
        if not value:
            run.no_value += taken
            run.left = run.left or not taken
        elif type(value) is list and not _has_nested(value):
            if taken:
                self._walk_one(run, record, name, value)
            else:
                run.left = True
        elif level >= MAX_LEVELS:
            run.refuse(name, f"nested more than {MAX_LEVELS} levels deep")
        elif len(name) > contract.MAX_NAME:
            run.refuse(name, f"a name of more than {contract.MAX_NAME} characters")
        else:
            members = value if type(value) is dict else {str(at): one for at, one in enumerate(value)}
            self._walk(run, record, members, f"{name}_", level + 1, taken=taken)

    def _walk_one(self, run: _Run, record: _Record, name: str, value: list[Any]) -> None:
        if all(one is None for one in value):
            run.no_value += 1
        else:
            self._named(run, record, name, value)

    def _named(self, run: _Run, record: _Record, name: str, value: Any) -> None:
        metric = name if self._metric is None else self._metric.fill(record.place, name)
        if metric is None or (wrong := _name_fault(metric)) is not None:
            run.refuse(name, "it names no metric" if metric is None else f"its metric {wrong}")
        else:
            self._put(run, record, metric, value, name)

    def _look_at(
        self, name: str, known: dict[str, tuple[bool, bool, str | None, str | None]]
    ) -> tuple[bool, bool, str | None, str | None]:
        """Return whether a member is left out or taken, and its metric or fault if that is the same in every
        payload.
        """
        is_left = name in self._spoken_for or bool(self._leave(name))
        is_taken = self._take is not None and bool(self._take(name))
        metric: str | None = None
        wrong: str | None = None
        if self._metric is None or self._metric.by_member:
            metric = name if self._metric is None else self._metric.fill(_NOWHERE, name)
            if metric is not None and (fault := _name_fault(metric)) is not None:
                metric, wrong = None, f"its metric {fault}"
        if len(known) >= _MAX_NAMES:
            known.clear()
        seen = (is_left, is_taken, metric, wrong)
        if len(name) <= contract.MAX_NAME:
            known[name] = seen
        return seen

    def _put(self, run: _Run, record: _Record, metric: str, value: Any, name: str) -> None:
        """Add a reading, or the reason why there is none."""
        kind = type(value)
        if kind is float:
            if not math.isfinite(value):
                if value != value:
                    run.no_value += 1
                else:
                    run.refuse(name, "infinite, or beyond the doubles")
                return
        elif kind is int:
            if not -contract.MAX_INT - 1 <= value <= contract.MAX_INT:
                run.refuse(name, "a whole number beyond 64 bits")
                return
        elif kind is str:
            if value in self._no_value:
                run.no_value += 1
                return
            value = self._word(value)
            if type(value) is str and (wrong := _text_fault(value, run.is_strict)) is not None:
                run.refuse(name, wrong)
                return
        elif kind is not bool:
            if value is None:
                run.no_value += 1
                return
            value, wrong = _other(value, run.is_strict)
            if wrong is not None:
                run.refuse(name, wrong)
                return
        if len(run.rows) >= MAX_READINGS:
            run.refuse(name, f"beyond {MAX_READINGS} readings of a payload")
            return
        run.size += record.cost + len(metric)
        if type(value) is str:
            run.size += len(value)
        elif type(value) is list:
            run.size += 8 * len(value)
        if run.size > MAX_BYTES and run.rows:
            run.refuse(name, f"beyond {MAX_BYTES} bytes of readings of a payload")
            return
        run.rows.append(_Row(record.ts, record.device, metric, value, record.tags))

    def _word(self, text: str) -> Any:
        meaning = self._words.get(text, MISSING)
        if meaning is not MISSING:
            return meaning
        if self._numbers and len(text) <= _MAX_DIGITS and _NUMBER(text):
            number = int(text) if text.removeprefix("-").isdigit() else float(text)
            if type(number) is int and abs(number) <= contract.MAX_INT:
                return number
            if type(number) is float and math.isfinite(number):
                return number
        return text


_NOWHERE: Final = Place(None, None, "", (), "", {})


def _has_nested(values: list[Any]) -> bool:
    return any(type(value) in (dict, list) for value in values)


def _other(value: Any, is_strict: bool) -> tuple[Any, str | None]:
    """Return the value of a list or unusual text, and its fault."""
    if type(value) is NotJson:
        return None, f"{str(value)!r:.60} is no JSON"
    if type(value) is not list:
        return None, "no value"
    if len(value) <= contract.MAX_ARRAY and all(_is_exact(one) for one in value):
        return value, None
    if len(value) > contract.MAX_TEXT:
        return None, f"an array of {len(value)} elements"
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return None, "an array with a number that is not finite"
    return text, _text_fault(text, is_strict)


def _is_exact(value: Any) -> bool:
    """Tell whether an array may hold it."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) <= contract.MAX_EXACT


def _text_fault(text: str, is_strict: bool) -> str | None:
    if len(text) > contract.MAX_TEXT:
        return f"text of more than {contract.MAX_TEXT} characters"
    return None if is_strict or _is_utf8(text) else "text that is not UTF-8"


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_fault(name: str) -> str | None:
    """Return why a text is no name, to follow the noun."""
    if 1 <= len(name) <= contract.MAX_NAME and name.isprintable():
        return None
    if not 1 <= len(name) <= contract.MAX_NAME:
        return f"has {len(name)} characters, and may have 1 to {contract.MAX_NAME}"
    if _control(name):
        return "holds a control character"
    return None if _is_utf8(name) else "is not UTF-8"


class Mapping:
    """A compiled mapping. Not for two threads at once."""

    def __init__(self, kinds: list[_Kind], empty: str, separator: str) -> None:
        self._kinds, self._empty, self._separator = kinds, empty, separator
        self._is_senml = any(kind.is_senml for kind in kinds)

    def apply(self, payload: bytes, now_ns: int, topic: str = "", mark: str | None = None) -> Mapped:
        """Return the readings of a payload. Raises `MappingError`.

        `now_ns` is the arrival in ns since 1970; readings with that as their time get the tag `mark`.
        """
        if not payload:
            return Mapped(b"", 0, no_value=1, is_dated=False)
        try:
            value, is_strict = decode(payload, is_senml=self._is_senml)
        except PayloadError as error:
            raise MappingError(str(error)) from None
        run = _Run(now_ns, mark, is_strict)
        whole = Place(value, value, topic, levels_of(topic, self._separator), "", {})
        for kind in self._kinds:
            kind.apply(run, whole)
        if not (run.rows or run.odd or run.no_value or run.left):
            if self._empty == "refuse":
                raise MappingError(run.nothing[0] if run.nothing else "no record of the mapping fits it")
            run.no_value = 1
        return Mapped(
            _encoder.encode_lines(run.rows),
            len(run.rows),
            run.odd,
            run.more_odd,
            run.no_value,
            is_dated=run.is_dated,
        )


def compile_map(given: Map, domain: str, *, has_topic: bool = True, separator: str = "/") -> Mapping:
    """Return a mapping whose default device is `domain`. Raises `MapError`.

    `separator` is that of the topics; without topics `has_topic` is False.
    """
    problems: list[MapProblem] = []
    if given.preset is not None and given.preset not in names():
        remedy = f"take one of {', '.join(names())}"
        raise MapError([MapProblem("preset", f'there is no preset "{given.preset:.80}"', remedy)])
    whole = complete(given)
    if len(whole.record) > _MAX_RECORDS:
        problems.append(
            MapProblem("record", f"{len(whole.record)} are too many", f"write at most {_MAX_RECORDS}")
        )
    records = whole.record
    if not has_topic and given.preset is not None and not given.record:
        # A preset's records for topics find none here; others of it may fit.
        records = [record for record in records if record.topic is None] or records
    kinds = []
    for number, record in enumerate(records[:_MAX_RECORDS] or [whole], 1):
        kind = _Kind(_inherited(record, whole), domain, has_topic=has_topic)
        kinds.append(kind)
        for problem in kind.problems:
            own = bool(whole.record) and getattr(record, problem.key.partition(".")[0], None) is not None
            key = f"record[{number}].{problem.key}" if own else problem.key
            found = MapProblem(key, problem.stood, problem.remedy)
            if found not in problems:
                problems.append(found)
    if problems:
        raise MapError(problems)
    return Mapping(kinds, whole.empty or "refuse", separator)


def _inherited(record: MapRecord, whole: Map) -> MapRecord:
    """Return a record with the keys of its map where it has none."""
    if record is whole:
        return whole
    absent = {field.name: getattr(whole, field.name) for field in fields(MapRecord)}
    own = {name: value for name in absent if (value := getattr(record, name)) is not None}
    if "value" in own:
        absent["values"] = None
    elif "values" in own:
        absent["value"] = None
    return MapRecord(**(absent | own))
