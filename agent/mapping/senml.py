"""Resolves the records of a SenML pack (RFC 8428, 4.6). No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from agent import contract

_RELATIVE: Final = 2**28
"""Times below this many seconds count from now (RFC 8428, 4.5.3)."""
_BASES: Final = ("bn", "bt", "bu", "bv", "bs", "bver")
_VALUES: Final = ("vs", "vb", "vd")


def resolve(pack: Any, now_ns: int, refuse: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Return records with the full name `n`, its parts `b` (base name) and `l` (rest), unit `u`, value `v`
    and absolute time `t` in seconds. A sum is a record of its own, with `_sum` behind its name.

    Records that only set base fields are left out. Calls `refuse` with name and reason for records that break
    the RFC. Version 10 is the only known.
    """
    records = pack if type(pack) is list else [pack]
    base: dict[str, Any] = {}
    resolved = []
    for number, record in enumerate(records):
        if type(record) is not dict:
            refuse(f"record {number}", "no object of SenML")
            continue
        own = {name: value for name, value in record.items() if name in _BASES}
        base |= own
        fault = _fault(record, base)
        if fault is not None:
            refuse(f"record {number}", fault)
            continue
        if not any(name in record for name in ("v", "s", *_VALUES)):
            if not own:
                refuse(f"record {number}", "it has no value of SenML")
            continue
        one = _resolved(record, base, now_ns)
        if "v" in one:
            resolved.append(one)
        if "s" in record or "bs" in base:
            resolved.append(_summed(record, base, one))
    return resolved


def _fault(record: dict[str, Any], base: dict[str, Any]) -> str | None:
    unknown = next((name for name in record if name.endswith("_")), None)
    if unknown is not None:
        return f"{unknown!r:.40} must be understood (RFC 8428, 4.4), and is not"
    if base.get("bver", 10) not in (5, 10):
        return f"version {base['bver']!r:.20} of SenML, which is unknown"
    for name in ("bt", "t", "bv", "v", "bs", "s"):
        value = record.get(name, base.get(name, 0))
        if type(value) not in (int, float) or not math.isfinite(value):
            return f"{name} is no number"
    for name in ("bn", "n", "bu", "u"):
        text = record.get(name, base.get(name, ""))
        if type(text) is not str or len(text) > contract.MAX_NAME:
            return f"{name} is no text of at most {contract.MAX_NAME} characters"
    return None


def _resolved(record: dict[str, Any], base: dict[str, Any], now_ns: int) -> dict[str, Any]:
    time = base.get("bt", 0) + record.get("t", 0)
    # Without an absolute time the reading counts from now.
    seconds = now_ns / 1e9 + time if time < _RELATIVE else time
    before, rest = base.get("bn", ""), record.get("n", "")
    found: dict[str, Any] = {"n": before + rest, "b": before.rstrip(":"), "l": rest or "value"}
    if time != 0:
        found["t"] = seconds
    if (unit := record.get("u", base.get("bu"))) is not None:
        found["u"] = unit
    if "v" in record:
        found["v"] = record["v"] + base["bv"] if "bv" in base else record["v"]
    elif (name := next((name for name in _VALUES if name in record), None)) is not None:
        found["v"] = record[name]
    return found


def _summed(record: dict[str, Any], base: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a sum, whose unit is that of the value times a second."""
    found = {name: value for name, value in one.items() if name not in ("v", "u")}
    found |= {name: f"{one[name]}_sum" for name in ("n", "l")}
    found["v"] = record.get("s", 0) + base.get("bs", 0)
    return found
