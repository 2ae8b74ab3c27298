"""What the hub stores of a leaf in the bucket of the fleet, as far as programs other than the registrar read
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.contract.checks import ContractError, check_class, check_domain
from agent.contract.fields import count_of, field_of, open_record
from agent.contract.link import ClassState, class_state

_WHAT = "fleet record"


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """A leaf as it announced itself at `announced_at` (RFC 3339, the hub's clock): the `classes` as it said
    they were, and for each the highest sequence of its stream that the hub held, 0 where it holds none."""

    domain: str
    announced_at: str
    classes: Mapping[str, ClassState]
    held: Mapping[str, int]


def parse_fleet_record(data: bytes | str) -> FleetRecord:
    """Read the record of a leaf; raises `ContractError`. A record of an older registrar has no
    classes."""
    row = open_record(data, _WHAT)
    said = field_of(row, "said", dict, _WHAT) if "said" in row else {}
    return FleetRecord(
        check_domain(row.get("domain")),
        field_of(row, "announced_at", str, _WHAT),
        {check_class(cls): class_state(value, _WHAT) for cls, value in said.items()},
        {check_class(cls): _held(value) for cls, value in field_of(row, "classes", dict, _WHAT).items()},
    )


def _held(value: Any) -> int:
    if not isinstance(value, dict):
        raise ContractError(f"{_WHAT}: a class is {value!r:.80}, an object was expected")
    held = value.get("held")
    return 0 if held is None else count_of(field_of(value, "held", dict, _WHAT), "seq", _WHAT)
