"""Connects to one Modbus line by pymodbus, with one pending request."""

from __future__ import annotations

import asyncio
import logging
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pymodbus.client import AsyncModbusSerialClient, AsyncModbusTcpClient
from pymodbus.exceptions import ModbusException

from agent.base.wait import timeout
from agent.leaf.inputs.modbus import BITS, ModbusOptions, parse_link
from agent.leaf.inputs.modbus.plan import Read

if TYPE_CHECKING:
    from pymodbus.pdu import ModbusPDU

_PARITIES: Final = {"none": "N", "even": "E", "odd": "O"}
_MEANINGS: Final = {
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "server device failure",
    5: "acknowledge",
    6: "server device busy",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}
"""Exception codes: Modbus Application Protocol 1.1b3, 7."""
ILLEGAL_ADDRESS: Final = 2
# What matters is raised; the library also logs each answer that is missing.
logging.getLogger("pymodbus").setLevel(logging.CRITICAL)


class BusError(Exception):
    """The line can't be used; nothing is connected."""


class UnitError(Exception):
    """A unit failed. `reason` labels the metric; `code` is its exception, 0 without one, None for silence."""

    def __init__(self, reason: str, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.reason, self.code = reason, code


class Line:
    """A line that connects on demand, and again after a loss."""

    def __init__(self, options: ModbusOptions) -> None:
        self._timeout = options.timeout
        self._taken = asyncio.Lock()
        link = parse_link(options.url)
        assert link is not None, "the options were checked"
        self._client: AsyncModbusTcpClient | AsyncModbusSerialClient
        if link.line is None:
            self._client = AsyncModbusTcpClient(
                link.host or "", port=link.port, timeout=options.timeout, retries=0, reconnect_delay=0
            )
        else:
            self._client = AsyncModbusSerialClient(
                link.line,
                baudrate=options.baud,
                parity=_PARITIES[options.parity],
                stopbits=options.stop_bits,
                timeout=options.timeout,
                retries=0,
                reconnect_delay=0,
            )

    def close(self) -> None:
        self._client.close()

    async def read(self, read: Read) -> Sequence[int | bool]:
        """Return registers or bits. Raises `BusError` or `UnitError`."""
        async with self._taken:
            if not self._client.connected:
                await self._connect()
            try:
                answer = await self._ask(read)
            except (ModbusException, TimeoutError) as error:
                # A late answer would be taken for that of the next request.
                self._client.close()
                raise UnitError("timeout", f"no answer within {self._timeout} s") from error
            except OSError as error:
                self._client.close()
                raise BusError(str(error)) from error
        if answer.isError():
            code = int(getattr(answer, "exception_code", 0))
            raise UnitError("exception", f"exception {code}: {_MEANINGS.get(code, 'unknown')}", code)
        values = list(answer.bits) if read.table in BITS else list(answer.registers)
        if len(values) < read.count:
            raise UnitError("short_answer", f"{len(values)} values came, {read.count} were asked for", 0)
        return values

    async def _connect(self) -> None:
        try:
            async with timeout(max(self._timeout, 3.0)):
                is_open = await self._client.connect()
        except (OSError, TimeoutError, ModbusException, ValueError, termios.error) as error:
            self._client.close()
            # `termios.error` is what a line says to a baud rate or parity that it does not have.
            raise BusError(str(error) or type(error).__name__) from error
        if not is_open:
            self._client.close()
            raise BusError("it cannot be opened")

    async def _ask(self, read: Read) -> ModbusPDU:
        client, address, count = self._client, read.address, read.count
        match read.table:
            case "holding":
                return await client.read_holding_registers(address, count=count, device_id=read.unit)
            case "input":
                return await client.read_input_registers(address, count=count, device_id=read.unit)
            case "coil":
                return await client.read_coils(address, count=count, device_id=read.unit)
            case "discrete":
                return await client.read_discrete_inputs(address, count=count, device_id=read.unit)
