"""Decodes metric and log exports in steps, and builds their answer. No I/O. Needs the extra `otlp`.

Answers follow https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from agent.leaf.inputs.formats.line_values import LineError, PayloadParts
from agent.leaf.inputs.http.otlp.source import Sources

_STEP: Final = 500
"""Points or records per step, a few milliseconds."""
_SHOWN: Final = 3
"""Reasons in an answer."""
_KINDS: Final = 100
"""Reasons counted separately."""


class ExportTooLargeError(Exception):
    """A body's readings exceed its limit."""


class OtlpExport(PayloadParts):
    """Decodes one body: call `step` until False, then `payload` is NDJSON of `count` readings.

    `rejected` counts refused parts; `limit` bounds the payload in bytes. Raises `ValueError` for a bad body.
    """

    request_type: ClassVar[Any]
    response_type: ClassVar[Any]
    rejected_field: ClassVar[str]
    """The answer's field for the rejected count."""

    def __init__(self, body: bytes, is_json: bool, sources: Sources, now_ns: int, limit: int) -> None:
        super().__init__()
        self._request = self._decoded(body, is_json)
        self._is_json = is_json
        self._sources = sources
        self._stamps = sources.stamps
        self._now = self._stamps.machine(now_ns)
        self._room = limit
        self._reasons: Counter[str] = Counter()
        self._taking = self._take_all()
        self.count = 0
        self.rejected = 0
        self.is_dated = True
        """Whether every part has a time, so that equal bodies are repeats."""
        self.left_out: Counter[str] = Counter()

    @abstractmethod
    def _take_all(self) -> Iterator[int]:
        """Yield the size of each step, including empty parts. Raises `ExportTooLargeError`."""

    def step(self) -> bool:
        """Take some parts and tell whether more follow. Raises `ExportTooLargeError`."""
        done = 0
        for taken in self._taking:
            done += taken
            if done >= _STEP:
                return True
        self._request = None  # many times the size of the body
        return False

    def response(self, is_json: bool) -> bytes:
        """Return the body of the answer 200."""
        response = self.response_type()
        if self.rejected:
            reasons = "; ".join(f"{count} × {reason}" for reason, count in self._reasons.most_common(_SHOWN))
            setattr(response.partial_success, self.rejected_field, self.rejected)
            response.partial_success.error_message = f"not stored: {reasons}"
        if is_json:
            return str(json_format.MessageToJson(response, indent=None)).encode()
        packed: bytes = response.SerializeToString()
        return packed

    def _use(self, size: int) -> None:
        """Count bytes of readings; raises `ExportTooLargeError`."""
        self._room -= size
        if self._room < 0:
            raise ExportTooLargeError

    def _reject(self, error: LineError) -> None:
        self.rejected += 1
        self.left_out[error.kind] += 1
        reason = str(error)
        is_counted = reason in self._reasons or len(self._reasons) < _KINDS
        self._reasons[reason if is_counted else "other reasons"] += 1

    def _decoded(self, body: bytes, is_json: bool) -> Any:
        request = self.request_type()
        try:
            if is_json:
                json_format.Parse(body, request, ignore_unknown_fields=True)
            else:
                request.ParseFromString(body)
        except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"the body is no {self.request_type.DESCRIPTOR.name}: {words:.200}") from None
        return request


def status_message(text: str) -> bytes:
    """Return a `google.rpc.Status` with this message (field 2)."""
    data = text.encode(errors="backslashreplace")[:1000]
    size, rest = len(data) & 0x7F, len(data) >> 7
    return b"\x12" + (bytes((size | 0x80, rest)) if rest else bytes((size,))) + data
