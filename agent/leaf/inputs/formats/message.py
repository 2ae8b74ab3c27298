"""Converts one device message to reading lines. No I/O.

A message is a bare value, a reading, or an object of values. Templates take missing device and metric from
its topic or subject. A member without a valid value becomes an invalid line of its own. In a template `{1}`
is the name's first part, `{2+}` the second and later parts joined by dots, `{0}` the whole; missing parts are
empty.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final, NamedTuple

import msgspec

from agent import contract

_MAX_LEVELS: Final = 8
_MAX_MEMBERS: Final = 2_000
_METRIC: Final = re.compile(rb'"metric":("(?:[^"\\]|\\.)*+")')
_PART: Final = re.compile(r"\{(0|[1-9][0-9]?)(\+?)\}")
_NUMBERS = list[float | int]
_SCALAR: Final = msgspec.json.Decoder(float | int | str | bool | _NUMBERS)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MENDED: Final = 64 * 1024
"""Bytes of a message searched for tokens such as `nan` that JSON lacks."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+\\?"?|[^\s,:\[\]{}"]+', re.DOTALL)
_JSON_TOKEN: Final = re.compile(
    rb'".*+|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null', re.DOTALL
)
_NO_JSON: Final = f'[["{secrets.token_hex(8)}",'.encode()
"""Begins the stand-in for a token that is no JSON."""
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encode = msgspec.json.encode


class MessageError(ValueError):
    """A message is refused; the text has the reason."""


class TopicNames(NamedTuple):
    """Device, metric and other names from a topic or subject; None if absent."""

    device: str | None = None
    metric: str | None = None


def reading_line(payload: bytes, names: TopicNames, *, fixed: bool = False) -> bytes:
    """Convert a bare value or a reading to an unvalidated JSON line without newline. Raises `MessageError`.

    `names` fill missing fields; with `fixed` the message may not set them.
    """
    text = payload.strip()
    if not text.startswith(b"{"):
        return _line({}, names, _scalar(text))
    members = _members(text)
    for name, expected in names._asdict().items() if fixed else ():
        if expected is not None and name in members and _text(members[name]) != expected:
            raise MessageError(f"it names another {name} than its topic, which says {expected!r:.80}")
    return _line(members, names)


def message_lines(payload: bytes, names: TopicNames) -> list[bytes]:
    """Convert like `reading_line`, and an object without `value` and `metric` to a reading per member.

    Nested members are named `outer_inner`, `null` is skipped, `ts` applies to all. Invalid values, such as
    `nan`, keep a line. Raises `MessageError`.
    """
    text = payload.strip()
    if not text.startswith(b"{"):
        return [reading_line(text, names)]
    members = _members(text)
    if "value" in members or "metric" in members:
        return [_line(members, names)]
    ts = members.pop("ts", None)
    shared = {} if ts is None or bytes(ts) == b"null" else {"ts": ts}
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
        fault = error
    if len(text) <= _MENDED:
        try:
            return _OBJECT.decode(_TOKEN.sub(_mended, text))
        except _FAULTS:
            pass
    raise MessageError(f"not a JSON object: {_words(fault)}")


def _mended(match: re.Match[bytes]) -> bytes:
    """Replace a token that is no JSON by an invalid array."""
    token = match[0]
    if _JSON_TOKEN.fullmatch(token):
        return token
    return _NO_JSON + _encode(token.decode(errors="backslashreplace")) + b"]]"


def _text(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except _FAULTS as error:
        raise MessageError(_words(error)) from None


def _flat(members: dict[str, Any], before: str | None, level: int = 1) -> list[tuple[str, msgspec.Raw]]:
    flat = []
    for member, raw in members.items():
        name = member if before is None else f"{before}_{member}"
        text = bytes(raw)
        if text.startswith(b"{"):
            # Each value within would repeat a long name.
            if level < _MAX_LEVELS and len(name) <= contract.MAX_NAME:
                flat += _flat(_members(text), name, level + 1)
            else:
                flat.append((name, msgspec.Raw(b"[" + text + b"]")))  # which is no value
        elif text != b"null":
            flat.append((name, raw))
    return flat


def _line(members: dict[str, Any], names: TopicNames, value: msgspec.Raw | None = None) -> bytes:
    line = {name: text for name, text in names._asdict().items() if text is not None and name not in members}
    line |= members
    if value is not None:
        line["value"] = value
    return _encoded(line)


def _encoded(line: dict[str, Any]) -> bytes:
    for name, raw in line.items():
        if isinstance(raw, msgspec.Raw) and bytes(raw).startswith(_NO_JSON):
            ((_, token),) = msgspec.json.decode(raw)
            line[name] = msgspec.Raw(token.encode())
    return _encode(line).replace(b"\n", b" ").replace(b"\r", b" ")


def metric_of(line: bytes) -> str:
    """Return the metric of a line of `message_lines`, valid or not."""
    match = _METRIC.search(line)
    return "" if match is None else msgspec.json.decode(match[1], type=str)


def tagged(line: bytes, name: str) -> bytes:
    """Add a tag with value `true` to a line."""
    try:
        members = _OBJECT.decode(line)
        tags = members.get("tags")
        known = {} if tags is None else _OBJECT.decode(tags)
    except _FAULTS:
        return line  # it is no reading
    return _encoded(members | {"tags": known | {name: msgspec.Raw(b'"true"')}})


def _words(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def template_problem(template: str) -> str | None:
    """Return a template's fault with remedy, or None."""
    rest = _PART.sub("", template)
    if "{" in rest or "}" in rest:
        return f"{template!r:.80} is not a template; write a part of the name as {{2}}, the rest as {{2+}}"
    return None


def fill_template(template: str, name: str, separator: str) -> str:
    """Fill a template from a name split at `separator`."""
    parts = name.split(separator)

    def part(match: re.Match[str]) -> str:
        number = int(match[1])
        if number == 0:
            return name
        return ".".join(parts[number - 1 :] if match[2] else parts[number - 1 : number])

    return _PART.sub(part, template)
