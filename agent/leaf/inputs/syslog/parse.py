"""Converts syslog messages to readings with their text as value. No I/O.

RFC 5424 gives time, host, app, procid, msgid and structured data; RFC 3164 is read as far as its header
holds, with RFC 3339 times of rsyslog too. A time without offset becomes the tag `timestamp`, and `ts` is the
arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from agent import contract
from agent.leaf.inputs.formats import Parsed
from agent.leaf.inputs.formats.line_values import LineError, check_name, tail_of, to_json
from agent.leaf.inputs.syslog.framing import messages_of

FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *("ntp", "audit", "alert", "clock", *(f"local{number}" for number in range(8))),
)
SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
MAX_PARAMETERS: Final = 50
"""Structured data parameters that become tags."""
_PIECE: Final = 64 * 1024
"""Bytes parsed at once, a few milliseconds."""
_NIL: Final = "-"
_TIME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_is_time: Final = re.compile(rf"(?!000[01]|9999){_TIME}\Z").match
"""Excludes years whose ends an offset could exceed."""
_priority: Final = re.compile(r"<(0|[1-9][0-9]{0,2})>").match
_is_5424: Final = re.compile(r"1 (?:-|[0-9]{4}-[0-9]{2}-[0-9]{2}T[^ ]*) ").match
_header_5424: Final = re.compile(r"1 ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) (?=-(?: |\Z)|\[)").match
_header_3164: Final = re.compile(
    rf"({_TIME}|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-9][0-9] (?:[0-9]{{2}}:?){{3}}(?<!:))"
    r"(?: ([^ \[]*[^ \[:]))?(?= |\Z)"
).match
_tag_3164: Final = re.compile(r" ?([^ :\[\]]{1,48})(?:\[([^ \]]{1,128})\])?:(?= |\Z)").match
_NAME: Final = r'[^ =\]"\x00-\x1f\x7f]{1,120}'
_VALUE: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_element: Final = re.compile(rf"\[({_NAME})((?: {_NAME}={_VALUE})*+) *\]", re.DOTALL).match
_parameters: Final = re.compile(rf" ({_NAME})=({_VALUE})", re.DOTALL).finditer
_unescape: Final = re.compile(r'\\(["\\\]])').sub
Tags = dict[str, str]


class MessageParser:
    """Parses length-prefixed messages like a `LineParser`. `sender` is the device without host."""

    def __init__(self, metric: str, sender: str) -> None:
        self.sender = sender
        self._metric = to_json(metric)

    def is_whole(self, line: bytes) -> bool:
        return False

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        """Yield messages of a block that arrived at `now_ns` (ns since 1970), in parts of a
        few milliseconds.
        """
        now = contract.machine_time(now_ns)
        readings: list[bytes] = []
        bad: list[tuple[int, str]] = []
        size = 0
        for offset, message in messages_of(lines):
            try:
                readings += self._readings(message, now)
            except LineError as error:
                bad.append((offset, str(error)))
            size += len(message) + 64
            if size >= _PIECE:
                yield Parsed(b"".join(readings), len(readings), tuple(bad))
                readings, bad, size = [], [], 0
        yield Parsed(b"".join(readings), len(readings), tuple(bad))

    def _readings(self, message: bytes, now: str) -> list[bytes]:
        """Return a message's readings, several for a long text."""
        text, tags, ts, device = _read(_text_of(message))
        device = device or self.sender
        check_name(device, "the host")
        for name, tag in tags.items():
            if len(tag) > contract.MAX_TEXT:
                raise LineError(f"{name} is longer than {contract.MAX_TEXT} characters", "size")
        before = b'{"ts":%s,"device":%s,"metric":%s,"value":' % (
            to_json(ts or now),
            to_json(device),
            self._metric,
        )
        if len(text) <= contract.MAX_TEXT:
            return [before + to_json(text) + tail_of(tags)]
        starts = range(0, len(text), contract.MAX_TEXT)
        return [
            before
            + to_json(text[start : start + contract.MAX_TEXT])
            + tail_of({**tags, "part": f"{number}/{len(starts)}"})
            for number, start in enumerate(starts, 1)
        ]


def _text_of(message: bytes) -> str:
    r"""Return a message as text; invalid UTF-8 is escaped (`\xe9`)."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        return message.decode(errors="backslashreplace")


def _read(message: str) -> tuple[str, Tags, str | None, str | None]:
    """Return text, tags, time with offset and host; raises `LineError`."""
    found = _priority(message)
    if found is None or int(found[1]) >= 8 * len(FACILITIES):
        raise LineError("no syslog: it does not begin with <PRI>, a number of 0 to 191 in brackets")
    facility, severity = divmod(int(found[1]), 8)
    tags = {"facility": FACILITIES[facility], "severity": SEVERITIES[severity]}
    body = message[found.end() :]
    return _read_5424(body, tags) if _is_5424(body) else _read_3164(body, tags)


def _read_5424(body: str, tags: Tags) -> tuple[str, Tags, str | None, str | None]:
    header = _header_5424(body)
    if header is None:
        raise LineError("no RFC 5424: the header has no time, host, app, procid, msgid and structured data")
    ts, host, *named = header.groups()
    tags |= {name: text for name, text in zip(("app", "procid", "msgid"), named, strict=True) if text != _NIL}
    end = header.end() + 1 if body[header.end()] == _NIL else _structured(body, header.end(), tags)
    text = body[end:]
    if text and not text.startswith(" "):
        raise LineError("no RFC 5424: structured data is not followed by a space")
    time = _time(ts, tags) if ts != _NIL else None
    return text[1:].removeprefix("\ufeff"), tags, time, host if host != _NIL else None


def _read_3164(body: str, tags: Tags) -> tuple[str, Tags, str | None, str | None]:
    header = _header_3164(body)
    if header is None:
        return body, tags, None, None
    time = _time(header[1], tags)
    rest = body[header.end() :]
    if (tag := _tag_3164(rest)) is not None:
        tags["app"] = tag[1]
        if tag[2]:
            tags["procid"] = tag[2]
        rest = rest[tag.end() :]
    return rest.removeprefix(" "), tags, time, header[2]


def _time(text: str, tags: Tags) -> str | None:
    """Return a time with offset; others become a tag."""
    if _is_time(text):
        try:
            datetime.fromisoformat(text)
        except ValueError:  # the 31st of February
            pass
        else:
            # `-00:00` marks times by this machine's clock.
            return text[:-6] + "Z" if text.endswith(contract.MACHINE_OFFSET) else text
    tags["timestamp"] = text
    return None


def _structured(body: str, begin: int, tags: Tags) -> int:
    """Add structured data as tags `<id>.<name>`, or whole; returns its end. Raises `LineError`."""
    found: list[tuple[str, str]] = []
    at = begin
    while (element := _element(body, at)) is not None:
        at = element.end()
        if len(found) <= MAX_PARAMETERS:
            parameters = [
                (f"{element[1]}.{match[1]}", _unescape(r"\1", match[2][1:-1]))
                for match in _parameters(element[2])
            ]
            found += parameters or [(element[1], "")]
    if at == begin or body[at : at + 1] == "[":
        raise LineError("no RFC 5424: the structured data is not well formed")
    named = dict(found)
    if len(found) > MAX_PARAMETERS or len(named) < len(found) or named.keys() & {*tags, "timestamp", "part"}:
        tags["structured_data"] = body[begin:at]
    else:
        tags |= named
    return at
