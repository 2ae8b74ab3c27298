"""One message of a device: a bare value, a reading, or an object whose members are values. No I/O."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from agent import contract

_PART: Final = re.compile(r"\{(0|[1-9][0-9]?)(\+?)\}")

_MOST_LEVELS: Final = 8
_MOST_MEMBERS: Final = 2_000
_SCALAR: Final = msgspec.json.Decoder(float | int | str | bool)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = msgspec.json.encode


class MessageError(ValueError):
    """A message cannot be taken; the text says why."""


class TopicNames(NamedTuple):
    """What a message's topic or subject says of it, None where it says nothing."""

    device: str | None = None
    metric: str | None = None


def reading_line(payload: bytes, place: TopicNames, *, fixed: bool = False) -> bytes:
    """A bare value or a reading as a JSON line, without a newline, that the decoder of readings has yet to
    look at. What a reading does not say of itself is that of its place; with `fixed` it may not say anything
    else. Raises `MessageError`."""
    text = payload.strip()
    if not text.startswith(b"{"):
        return _line({}, place, _scalar(text))
    members = _members(text)
    for name, due in place._asdict().items() if fixed else ():
        if due is not None and name in members and _text(members[name]) != due:
            raise MessageError(f"it names another {name} than its topic, which says {due!r:.80}")
    return _line(members, place)


def message_lines(payload: bytes, place: TopicNames) -> list[bytes]:
    """Like `reading_line`, and an object that has neither `value` nor `metric` is a reading a member: members
    of objects within are named `outer_inner`, `null` is left out, `ts` is the time of all. Raises
    `MessageError`."""
    text = payload.strip()
    if not text.startswith(b"{"):
        return [reading_line(text, place)]
    members = _members(text)
    if "value" in members or "metric" in members:
        return [_line(members, place)]
    ts = members.pop("ts", None)
    shared = {} if ts is None else {"ts": ts}
    lines = []
    for name, value in _flat(members, place.metric):
        lines.append(_line(shared, TopicNames(place.device, name), value))
    if len(lines) > _MOST_MEMBERS:
        raise MessageError(f"an object of {len(lines)} values, more than {_MOST_MEMBERS}")
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
    if level > _MOST_LEVELS:
        raise MessageError("nested too deeply")
    found = []
    for member, raw in members.items():
        name = member if before is None else f"{before}_{member}"
        text = bytes(raw)
        # Each value within would repeat it.
        if len(name) > contract.MAX_NAME and text != b"null":
            raise MessageError(f"member {name!r:.80} makes a name longer than {contract.MAX_NAME} characters")
        if text.startswith(b"{"):
            found += _flat(_members(text), name, level + 1)
        elif text.startswith(b"["):
            raise MessageError(f"member {name!r:.80} is an array, which is no value")
        elif text != b"null":
            found.append((name, raw))
    return found


def _line(members: dict[str, Any], place: TopicNames, value: msgspec.Raw | None = None) -> bytes:
    line = {name: due for name, due in place._asdict().items() if due is not None and name not in members}
    line |= members
    if value is not None:
        line["value"] = value
    return _encode(line).replace(b"\n", b" ").replace(b"\r", b" ")


def _words(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def template_problem(template: str) -> str | None:
    """What is wrong with a template, with a remedy; None when nothing is."""
    rest = _PART.sub("", template)
    if "{" in rest or "}" in rest:
        return f"{template!r:.80} is no template; write a part of the name as {{2}}, the rest as {{2+}}"
    return None


def filled(template: str, name: str, separator: str) -> str:
    """What a template makes of a name whose parts stand between separators."""
    parts = name.split(separator)

    def part(found: re.Match[str]) -> str:
        number = int(found[1])
        if number == 0:
            return name
        return ".".join(parts[number - 1 :] if found[2] else parts[number - 1 : number])

    return _PART.sub(part, template)
