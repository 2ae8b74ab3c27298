"""Corrections of a machine's clock: what its agent learnt later about the times that it had stamped.

A time that was stamped by the clock of the agent's machine ends in `MACHINE_OFFSET`, anywhere in a
reading; only such a time is ever corrected. A device that has a clock of its own ends its times otherwise.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from agent.contract.checks import MAX_INT, ContractError, check_domain, matching
from agent.contract.fields import count_of, field_of, open_record
from agent.contract.names import VERSION

MACHINE_OFFSET: Final = "-00:00"
"""The same as Z (RFC 3339), but no clock library writes it."""

_BOOT = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def machine_time(ns: int) -> str:
    """A moment by this machine's clock (ns since 1970) as the `ts` of a reading."""
    moment = _EPOCH + timedelta(microseconds=ns // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}{MACHINE_OFFSET}"


@dataclass(frozen=True, slots=True)
class Correction:
    """What the wall clock of `domain` showed in the kernel's boot `boot` from monotonic time `since` to
    `until` (`CLOCK_BOOTTIME`) was monotonic time plus `offset`; the truth was `by` more. All in ns."""

    domain: str
    boot: str
    since: int
    until: int
    offset: int
    by: int

    def encode(self) -> bytes:
        """The record as it is published."""
        row = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({"v": VERSION, **row}, separators=(",", ":")).encode()


def parse_correction(data: bytes | str) -> Correction:
    """Read a correction; raises `ContractError`."""
    what = "correction"
    row = open_record(data, what)
    since, until = count_of(row, "since", what), count_of(row, "until", what)
    if since >= until:
        raise ContractError(f"{what}: {since} to {until} is no interval")
    offset, by = (field_of(row, name, int, what) for name in ("offset", "by"))
    if max(abs(offset), abs(by)) > MAX_INT:
        raise ContractError(f"{what}: {offset} and {by} must fit into 64 bits")
    boot = matching(_BOOT, row.get("boot"), "boot", "1 to 64 letters, digits, '_' or '-'")
    return Correction(check_domain(row.get("domain")), boot, since, until, offset, by)
