"""Identifies the hub's lake, the only one behind which its registrar purges.

Its id is Delta's id of `bronze`, shared by copies; reported stream positions expose older states. Another
lake, a new one or an older state needs adoption (`petiole lake adopt`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from agent.contract.checks import (
    ContractError,
    count_of,
    encoded,
    field_of,
    matching,
    nullable,
    open_record,
)

__all__ = [
    "HUB_LAKE",
    "NEW_LAKE",
    "Adoption",
    "Done",
    "HubLake",
    "adopted",
    "check_lake",
    "lake_subject",
    "other_lake",
    "parse_adoption",
    "parse_hub_lake",
    "reported",
    "stored_lake",
]

HUB_LAKE: Final = "lake.known"
"""Key in the fleet's bucket; no domain has a dot."""
NEW_LAKE: Final = "new"
"""Stands for the next lake of `ingest`."""
_UNREADABLE: Final = "unreadable"
"""Id of an unreadable record, which no lake has."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_PLACE_LENGTH: Final = 300
_STREAMS: Final = 10_000
_WHAT: Final = "lake"

Done = tuple[str, int]
"""A stream's creation time and the lake's last sequence."""


@dataclass(frozen=True, slots=True)
class HubLake:
    """A lake's last report: id, `place`, time `at`, and positions. `left` are earlier lakes' positions."""

    id: str
    place: str
    at: str
    streams: Mapping[str, Done] = field(default_factory=dict)
    left: Mapping[str, Done] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encoded(self.as_row())

    def as_row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "place": self.place,
            "at": self.at,
            "streams": {name: list(done) for name, done in self.streams.items()},
            "left": {name: list(done) for name, done in self.left.items()},
        }

    def __str__(self) -> str:
        return f"{self.id} ({self.place}, reported {self.at})"


def parse_hub_lake(data: bytes | str) -> HubLake:
    """Parse the record; raises `ContractError`."""
    row = open_record(data, _WHAT)
    return HubLake(
        field_of(row, "id", str, _WHAT),
        field_of(row, "place", str, _WHAT),
        field_of(row, "at", str, _WHAT),
        _streams_of(row, "streams"),
        _streams_of(row, "left"),
    )


def stored_lake(data: bytes | str) -> HubLake | None:
    """Return the hub's record, None if missing. An unreadable one matches no lake."""
    if not data:
        return None
    try:
        return parse_hub_lake(data)
    except ContractError as error:
        return HubLake(_UNREADABLE, f"the hub's record of its lake can't be read: {error}", "never")


def check_lake(value: object) -> str:
    """Return a valid lake id; raises `ContractError`."""
    return matching(_ID, value, _WHAT, "the id of a lake, such as 0b3e7a52-6a5f-4c0e-9d4e-2f6c1f0a7b11")


def other_lake(known: HubLake | None, lake: str, place: str) -> str | None:
    """Return why the hub does not purge behind this lake, or None. "" is a lake that does not exist yet."""
    if known is None or known.id in (lake, NEW_LAKE):
        return None
    if lake:
        return (
            f"the lake at {place} is {lake}, and the hub's lake is {known}: mount the disk of that lake, or "
            f"correct --lake; to replace it: petiole lake adopt {lake} --instead-of {known.id}, at the hub"
        )
    return (
        f"there is no lake at {place}, and the hub's lake is {known}: mount the disk of that lake, or "
        f"correct --lake; to begin another: petiole lake adopt {NEW_LAKE} --instead-of {known.id}, at the hub"
    )


def reported(known: HubLake | None, lake: str, place: str, at: datetime, stream: str, done: Done) -> HubLake:
    """Return the record after a lake's report; positions of a stream never decrease."""
    same = known if known is not None and known.id == lake else None
    left = {} if known is None else known.left
    before = None if same is None else same.streams.get(stream)
    if before is not None and before[0] == done[0]:
        done = max(before, done)
    streams = {**(same.streams if same else {}), stream: done}
    return HubLake(lake, place[:_PLACE_LENGTH], at.isoformat(timespec="seconds"), streams, left)


@dataclass(frozen=True, slots=True)
class Adoption:
    """A person's decision: `lake` (id or `NEW_LAKE`) replaces `instead_of`. Without both it asks for the
    record.
    """

    lake: str = ""
    instead_of: str = ""

    def encode(self) -> bytes:
        return encoded({"lake": self.lake, "instead_of": self.instead_of})


def parse_adoption(data: bytes | str) -> Adoption:
    """Parse a decision; raises `ContractError`."""
    row = open_record(data, _WHAT)
    lake = nullable(row, "lake", str, _WHAT) or ""
    if lake not in ("", NEW_LAKE):
        check_lake(lake)
    return Adoption(lake, nullable(row, "instead_of", str, _WHAT) or "")


def adopted(known: HubLake | None, word: Adoption, at: datetime) -> HubLake:
    """Return the record after an adoption. Raises `ContractError` if the replaced lake is not the hub's."""
    if known is None:
        raise ContractError("the hub knows no lake yet: the first one that ingest fills becomes its lake")
    if known.id != word.instead_of:
        raise ContractError(f"--instead-of {word.instead_of or 'nothing'}: the hub's lake is {known}")
    left = dict(known.left)
    for stream, done in known.streams.items():
        same = left.get(stream)
        left[stream] = max(same, done) if same is not None and same[0] == done[0] else done
    place = "adopted, and has not reported yet"
    return HubLake(word.lake, place, at.isoformat(timespec="seconds"), {}, left)


def lake_subject() -> str:
    """Return the subject of the hub's lake service."""
    return "petiole.v1.lake"


def _streams_of(row: Mapping[str, Any], name: str) -> dict[str, Done]:
    found = field_of(row, name, dict, _WHAT)
    if len(found) > _STREAMS:
        raise ContractError(f"{_WHAT}: {name} has {len(found)} streams, at most {_STREAMS} are known")
    read = {}
    for stream, done in found.items():
        if not isinstance(done, list) or len(done) != 2:
            raise ContractError(f"{_WHAT}: {name} of {stream!r:.80} is not [created, sequence]")
        fields = dict(zip(("created", "seq"), done, strict=True))
        read[stream] = field_of(fields, "created", str, _WHAT), count_of(fields, "seq", _WHAT)
    return read
