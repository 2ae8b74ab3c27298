"""Plans the fewest requests for selected values and decodes answers. No I/O."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from msgspec import Struct

from agent.leaf.inputs.modbus import ADDRESS, BITS, WIDTHS, RegisterSelection, Table, Type

MAX_REGISTERS: Final = 125
MAX_BITS: Final = 2_000
"""Per request: Modbus Application Protocol 1.1b3, 6.1 and 6.3."""
_FORMATS: Final[dict[Type, str]] = {
    "bool": "?",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "uint64": ">Q",
    "float32": ">f",
    "float64": ">d",
}


class Value(NamedTuple):
    """A value at an address."""

    address: int
    kind: Type
    is_little: bool
    """Whether the least significant register is first."""
    scale: float
    offset: float
    device: str
    metric: str

    @property
    def end(self) -> int:
        return self.address + WIDTHS[self.kind]


class Read(Struct, frozen=True):
    """A request for `count` registers or bits from `address`, and its values."""

    unit: int
    table: Table
    address: int
    count: int
    values: tuple[Value, ...]

    @property
    def has_gaps(self) -> bool:
        """Whether it reads unselected addresses."""
        covered = {at for value in self.values for at in range(value.address, value.end)}
        return len(covered) < self.count


def plan(registers: Iterable[RegisterSelection], default: float, gap: int) -> dict[float, list[Read]]:
    """Return the requests per interval in seconds; reads across up to `gap` unselected addresses."""

    def place(register: RegisterSelection) -> tuple[float, int, Table]:
        return register.interval or default, register.unit, register.table

    groups: dict[float, list[Read]] = {}
    for (interval, unit, table), of in groupby(sorted(registers, key=place), place):
        values = sorted(value for register in of for value in _values(register))
        groups.setdefault(interval, []).extend(reads(unit, table, values, gap))
    return groups


def reads(unit: int, table: Table, values: Sequence[Value], gap: int) -> Iterator[Read]:
    """Return the fewest requests for values sorted by address."""
    most = MAX_BITS if table in BITS else MAX_REGISTERS
    together: list[Value] = []
    end = 0
    for value in values:
        if together and (value.address > end + gap or value.end - together[0].address > most):
            yield _read(unit, table, together)
            together = []
        together.append(value)
        end = max(value.end, end) if len(together) > 1 else value.end
    if together:
        yield _read(unit, table, together)


def split(read: Read) -> list[Read]:
    """Split a request to skip unselected addresses."""
    return list(reads(read.unit, read.table, read.values, 0))


def numbers(read: Read, answer: Sequence[int | bool]) -> Iterator[tuple[Value, int | float | bool | None]]:
    """Yield each value of an answer, None if not finite. Raises `ValueError` for a wrong length."""
    if len(answer) < read.count:
        raise ValueError(f"the answer has {len(answer)} values, {read.count} were asked for")
    for value in read.values:
        first = value.address - read.address
        words = answer[first : first + WIDTHS[value.kind]]
        yield value, _number(value, words)


def _number(value: Value, words: Sequence[int | bool]) -> int | float | bool | None:
    if value.kind == "bool":
        return bool(words[0])
    ordered = words[::-1] if value.is_little else words
    (number,) = struct.unpack(_FORMATS[value.kind], struct.pack(f">{len(ordered)}H", *ordered))
    if value.scale == 1.0 and value.offset == 0.0:
        result: int | float = number
    else:
        result = number * value.scale + value.offset
    return result if math.isfinite(result) else None


def _values(register: RegisterSelection) -> Iterator[Value]:
    width = WIDTHS[register.kind]
    for address in range(register.address, register.end, width):
        yield Value(
            address,
            register.kind,
            register.word_order == "little",
            register.scale,
            register.offset,
            register.device.replace(ADDRESS, str(address)),
            register.metric.replace(ADDRESS, str(address)),
        )


def _read(unit: int, table: Table, values: Sequence[Value]) -> Read:
    first, end = values[0].address, max(value.end for value in values)
    return Read(unit, table, first, end - first, tuple(values))
