"""One message of a device: a bare value (bytes only as a reading), a reading, or an object whose members are
values. What it does not
say of itself its name says (a topic, a subject), by templates of device and metric. No I/O.

In a template `{1}` is the first part of the name, `{2}` the second, `{2+}` the second and all after it with
dots between, `{0}` the whole name; a missing part is empty.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from agent import contract

_MAX_LEVELS: Final = 8
_MAX_MEMBERS: Final = 2_000
_PART: Final = re.compile(r"\{(0|[1-9][0-9]?)(\+?)\}")
_NUMBERS = list[float | int]
_SCALAR: Final = msgspec.json.Decoder(float | int | str | bool | _NUMBERS)
_ARRAY: Final = msgspec.json.Decoder(_NUMBERS)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = msgspec.json.encode


class MessageError(ValueError):
    """A message cannot be taken; the text says why."""


class TopicNames(NamedTuple):
    """What the topic or subject of a message says of it, None where it says nothing."""

    device: str | None = None
    metric: str | None = None


def reading_line(payload: bytes, names: TopicNames, *, fixed: bool = False) -> bytes:
    """A bare value or a reading as a JSON line, without a newline, that the decoder of readings has yet to
    look at. What a reading does not say of itself comes from `names`; with `fixed` it may not say anything
    else. Raises `MessageError`."""
    text = payload.strip()
    if not text.startswith(b"{"):
        return _line({}, names, _scalar(text))
    members = _members(text)
    for name, expected in names._asdict().items() if fixed else ():
        if expected is not None and name in members and _text(members[name]) != expected:
            raise MessageError(f"it names another {name} than its topic, which says {expected!r:.80}")
    return _line(members, names)


def message_lines(payload: bytes, names: TopicNames) -> list[bytes]:
    """Like `reading_line`, and an object that has neither `value` nor `metric` is a reading a member: members
    of objects within are named `outer_inner`, `null` is left out, `ts` is the time of all. Raises
    `MessageError`."""
    text = payload.strip()
    if not text.startswith(b"{"):
        return [reading_line(text, names)]
    members = _members(text)
    if "value" in members or "metric" in members:
        return [_line(members, names)]
    ts = members.pop("ts", None)
    shared = {} if ts is None else {"ts": ts}
    lines = []
    for name, value in _flat(members, names.metric):
        lines.append(_line(shared, TopicNames(names.device, name), value))
    if len(lines) > _MAX_MEMBERS:
        raise MessageError(f"an object of {len(lines)} values, more than {_MAX_MEMBERS}")
    if not lines:
        raise MessageError("an object without a member that is a value")
    return lines


def _scalar(text: bytes) -> msgspec.Raw:
    try:
        _SCALAR.decode(text)
    except _FAULTS as error:
        raise MessageError(f"neither an object nor a bare value in JSON: {_words(error)}") from None
    return msgspec.Raw(text)


def _members(text: bytes) -> dict[str, Any]:
    try:
        return _OBJECT.decode(text)
    except _FAULTS as error:
        raise MessageError(f"not a JSON object: {_words(error)}") from None


def _text(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except _FAULTS as error:
        raise MessageError(_words(error)) from None


def _flat(members: dict[str, Any], before: str | None, level: int = 1) -> list[tuple[str, msgspec.Raw]]:
    if level > _MAX_LEVELS:
        raise MessageError("nested too deeply")
    flat = []
    for member, raw in members.items():
        name = member if before is None else f"{before}_{member}"
        text = bytes(raw)
        # Each value within would repeat it.
        if len(name) > contract.MAX_NAME and text != b"null":
            raise MessageError(f"member {name!r:.80} makes a name longer than {contract.MAX_NAME} characters")
        if text.startswith(b"{"):
            flat += _flat(_members(text), name, level + 1)
        elif text.startswith(b"["):
            flat.append((name, _array(name, raw)))
        elif text != b"null":
            flat.append((name, raw))
    return flat


def _array(name: str, raw: msgspec.Raw) -> msgspec.Raw:
    try:
        _ARRAY.decode(raw)
    except _FAULTS:
        raise MessageError(f"member {name!r:.80} is an array, and not of numbers") from None
    return raw


def _line(members: dict[str, Any], names: TopicNames, value: msgspec.Raw | None = None) -> bytes:
    line = {name: text for name, text in names._asdict().items() if text is not None and name not in members}
    line |= members
    if value is not None:
        line["value"] = value
    return _encode(line).replace(b"\n", b" ").replace(b"\r", b" ")


def tagged(line: bytes, name: str) -> bytes:
    """A line with one tag more, of the value `true`."""
    members = _members(line)
    tags = members.get("tags")
    try:
        known = {} if tags is None else _OBJECT.decode(tags)
    except _FAULTS:
        return line  # it is no reading
    return _encode(members | {"tags": known | {name: msgspec.Raw(b'"true"')}})


def _words(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def template_problem(template: str) -> str | None:
    """What is wrong with a template, with a remedy; None for a good one."""
    rest = _PART.sub("", template)
    if "{" in rest or "}" in rest:
        return f"{template!r:.80} is not a template; write a part of the name as {{2}}, the rest as {{2+}}"
    return None


def fill_template(template: str, name: str, separator: str) -> str:
    """What a template makes of a name whose parts are parted by `separator`."""
    parts = name.split(separator)

    def part(match: re.Match[str]) -> str:
        number = int(match[1])
        if number == 0:
            return name
        return ".".join(parts[number - 1 :] if match[2] else parts[number - 1 : number])

    return _PART.sub(part, template)
