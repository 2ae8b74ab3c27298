"""A reading: one NDJSON line. The reference for the fast decoders of the agent and of the jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.contract.checks import MAX_INT, ContractError

MAX_NAME: Final = 255
MAX_TEXT: Final = 32 * 1024
MAX_TAGS: Final = 64
EPOCH_LIMIT: Final = 253_402_300_799
"""Last second of the year 9999: a larger `ts` is nearly always milliseconds by mistake."""

_RFC3339 = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)\Z"
)

Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. `ts` is RFC 3339 text with an offset or epoch seconds; None means arrival. `device` None
    means the domain itself."""

    metric: str
    value: Value
    ts: str | float | int | None = None
    device: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The reading as one JSON line, without the newline."""
        given = {"ts": self.ts, "device": self.device, "metric": self.metric, "value": self.value}
        row: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        if self.tags:
            row["tags"] = dict(self.tags)
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _refuse_constant(text: str) -> float:
    raise ContractError(f"{text} is not JSON")


def parse_reading(line: bytes | str) -> Reading:
    """Read one JSON line as a reading; raises `ContractError`. The reference for the fast decoders of the
    agent and of the jobs, which must take and refuse the same lines."""
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ContractError(f"a reading is an object, not {type(row).__name__}")
    unknown = row.keys() - {"ts", "device", "metric", "value", "tags"}
    if unknown:
        raise ContractError(f"unknown field {min(unknown)!r}; a reading has ts, device, metric, value, tags")
    device = _name(row["device"], "device") if "device" in row else None
    ts = _timestamp(row["ts"]) if "ts" in row else None
    return Reading(
        _name(row.get("metric"), "metric"), _value(row.get("value")), ts, device, _tags(row.get("tags", {}))
    )


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME:
        raise ContractError(f"{what} must be text of 1 to {MAX_NAME} characters, got {value!r:.80}")
    return value


def _value(value: object) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        return value
    if isinstance(value, int) and -MAX_INT - 1 <= value <= MAX_INT:
        return value
    if isinstance(value, float) and value - value == 0:
        return value
    raise ContractError(
        f"value must be a finite number, text of up to {MAX_TEXT} characters or a bool, got {value!r:.80}"
    )


def _timestamp(value: object) -> str | float | int:
    if isinstance(value, str) and _RFC3339.match(value) and value[:4] != "0000":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= EPOCH_LIMIT:
        return value
    raise ContractError(
        f"ts must be RFC 3339 with an offset or epoch seconds (not milliseconds), got {value!r:.80}"
    )


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_TAGS:
        raise ContractError(f"tags must be an object of at most {MAX_TAGS} entries, got {value!r:.80}")
    for key, text in value.items():
        _name(key, "a tag's name")
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ContractError(f"tag {key!r:.80} must be text, got {text!r:.80}")
    return value
