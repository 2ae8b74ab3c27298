"""Defines and checks the options of the input `modbus`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from agent import contract
from agent.config import Seconds
from agent.leaf.inputs.shared import InputOptions, missing_extra
from agent.leaf.inputs.shared.samples import check_interval

Table = Literal["holding", "input", "coil", "discrete"]
BITS: Final = ("coil", "discrete")
Type = Literal["bool", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
WIDTHS: Final[dict[Type, int]] = {
    "bool": 1,
    "int16": 1,
    "uint16": 1,
    "int32": 2,
    "uint32": 2,
    "int64": 4,
    "uint64": 4,
    "float32": 2,
    "float64": 4,
}
"""Registers per value."""
ADDRESS: Final = "{address}"
MAX_VALUES: Final = 20_000
_MAX_ADDRESS, _MAX_UNIT, _MAX_GAP = 65_535, 247, 124
_PORT: Final = 502


class ModbusOptions(InputOptions, tag="modbus", kw_only=True):
    """The options of one `modbus` input. deploy/reference.toml says what each means."""

    name: str = "modbus"
    url: Annotated[
        str, Meta(examples=["tcp://127.0.0.1:502"], extra={"also": ("server", "device", "host", "address")})
    ]
    registers: list[RegisterSelection]
    interval: Seconds = Seconds(1.0)
    timeout: Seconds = Seconds(1.0)
    gap: int = 8
    baud: int = 19_200
    parity: Literal["none", "even", "odd"] = "even"
    stop_bits: int = 1


class RegisterSelection(Struct, forbid_unknown_fields=True, kw_only=True):
    """Consecutive values in one table of one unit. `{address}` in `device` or `metric` is each value's
    address.
    """

    metric: str
    address: int
    unit: int = 1
    table: Table = "holding"
    type: Type = "uint16"
    count: int = 1
    word_order: Literal["big", "little"] = "big"
    scale: float = 1.0
    offset: float = 0.0
    device: str = ""
    interval: Seconds | None = None

    @property
    def kind(self) -> Type:
        """The value type; bit for coils and discrete inputs."""
        return "bool" if self.table in BITS else self.type

    @property
    def end(self) -> int:
        """The address after the last value."""
        return self.address + self.count * WIDTHS[self.kind]

    def problems(self) -> Iterator[str]:
        what = f"the register {self.metric!r:.80}"
        if not self.metric:
            yield "a register has no metric; name what it measures"
        if not 0 <= self.unit <= _MAX_UNIT + 8:
            yield f"{what} is of unit {self.unit}; take 0 to 255"
        if not 1 <= self.count <= MAX_VALUES or self.address < 0 or self.end - 1 > _MAX_ADDRESS:
            yield f"{what} reaches from {self.address} to {self.end - 1}; addresses are 0 to {_MAX_ADDRESS}"
        if self.count > 1 and ADDRESS not in self.metric + self.device:
            yield f"{what} names {self.count} values alike; write {ADDRESS} in metric or device"
        if not (math.isfinite(self.scale) and math.isfinite(self.offset)) or self.scale == 0:
            yield (
                f"{what} has scale {self.scale} and offset {self.offset}; take finite numbers, scale not 0"
            )
        if self.interval is not None and (problem := check_interval(self.interval)) is not None:
            yield f"{what}: {problem}"
        if max(len(self.metric), len(self.device)) + 5 > contract.MAX_NAME:
            yield f"{what} makes a name longer than {contract.MAX_NAME} characters"


class Link(Struct, frozen=True):
    """A host and port, or a serial line."""

    host: str | None = None
    port: int = _PORT
    line: str | None = None


def parse_link(url: str) -> Link | None:
    """Parse `tcp://host:port` or `rtu:///dev/ttyS0`, None for other text."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:
        return None
    if parts.username is not None or parts.query or parts.fragment:
        return None
    if parts.scheme == "tcp" and parts.hostname and parts.path in ("", "/"):
        return Link(host=parts.hostname, port=port)
    if parts.scheme == "rtu" and not parts.netloc and len(parts.path) > 1:
        return Link(line=parts.path)
    return None


def problems(options: ModbusOptions) -> Iterator[str]:
    if parse_link(options.url) is None:
        yield "url is neither; write it as tcp://<host>:502 or rtu:///dev/ttyUSB0"
    if not options.registers:
        yield 'registers is empty; write registers = [{ metric = "speed", address = 0 }]'
    for register in options.registers:
        yield from register.problems()
    if sum(register.count for register in options.registers) > MAX_VALUES:
        yield f"registers are more than {MAX_VALUES} values; make several inputs"
    if (problem := check_interval(options.interval)) is not None:
        yield problem
    if not 0.01 <= options.timeout <= 60:
        yield f"timeout is {options.timeout} s; take 10ms to 60s"
    if not 0 <= options.gap <= _MAX_GAP:
        yield f"gap is {options.gap}; take 0 to {_MAX_GAP} registers"
    if not 300 <= options.baud <= 4_000_000 or options.stop_bits not in (1, 2):
        yield "baud is 300 to 4000000 and stop_bits 1 or 2; write what the line is set to"
    yield from missing_extra("modbus", "pymodbus", "serial")
