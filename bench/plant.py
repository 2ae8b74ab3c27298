"""What a plant costs an agent: 1,000 variables of an OPC UA server that change each second, and 5,000
registers of a Modbus server that are read each second, until they are synced to disk. CPU of the agent alone,
without its NATS server; the servers of the plant are others' (node-opcua, modbus-serial).

The yardstick, at the same time, is a Python that takes the same from the same server with the same library
and does nothing with it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from agent.demo.loopback import free_port
from bench.agents import leaf
from bench.load import cpu_percent, stored
from bench.result import Against, Result, Row, measuring
from tests.harness.plant_servers import ModbusServer, OpcuaServer

VARIABLES: Final = 1_000
REGISTERS: Final = 5_000
REQUEST: Final = 125
_SETTLE_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 20.0
_ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
_YARDSTICK: Final = "the library alone"

_OPCUA: Final = """
[[input]]
type = "opcua"
url = "{url}"
nodes = [{{{{ path = "Line/*" }}}}]
"""
_MODBUS: Final = """
[[input]]
type = "modbus"
url = "{url}"
registers = [{{{{ metric = "r{{{{address}}}}", address = 0, count = {count} }}}}]
"""


def run() -> Result:
    with measuring("plant") as result, tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        directory = Path(name)
        result.options["rounds"] = str(_ROUNDS)
        with result.part("OPC UA"):
            opcua = OpcuaServer(directory / "opcua")
            opcua.start()
            try:
                for number in range(VARIABLES):
                    opcua.declare(f"Line/v{number}")
                opcua.beat(1.0)
                what = f"OPC UA, {VARIABLES:,} variables that change each second"
                result.rows += _rows(
                    what, directory, _OPCUA.format(url=opcua.url), "opcua", opcua.url, VARIABLES
                )
            finally:
                opcua.kill()
        with result.part("Modbus"):
            modbus = ModbusServer(free_port(), directory / "modbus")
            modbus.start()
            try:
                what = f"Modbus, {REGISTERS:,} registers each second"
                inputs = _MODBUS.format(url=modbus.url, count=REGISTERS)
                result.rows += _rows(what, directory, inputs, "modbus", modbus.url, REGISTERS)
            finally:
                modbus.kill()
    return result


def _rows(what: str, directory: Path, inputs: str, kind: str, url: str, each_second: int) -> list[Row]:
    own = directory / kind / "leaf"
    own.mkdir(parents=True)
    with leaf(own, inputs) as bench, _bare(kind, url) as bare:
        bench.start()
        time.sleep(_SETTLE_SECONDS)
        before, began = stored(bench.admin_port, kind), time.monotonic()
        rounds = [cpu_percent((bench.process, bare), _WATCH_SECONDS) for _ in range(_ROUNDS)]
        rate = (stored(bench.admin_port, kind) - before) / (time.monotonic() - began)
        bench.kill()
        bench.stop_server()
    cpu, theirs = [list(values) for values in zip(*rounds, strict=True)]
    return [
        Row(f"{what}: CPU", cpu, "% of a core", None, Against(_YARDSTICK, theirs), least=True),
        Row(f"{what}: stored", rate, "readings/s", 0.9, Against("what the plant says", float(each_second))),
    ]


@contextmanager
def _bare(kind: str, url: str) -> Iterator[psutil.Process]:
    """The yardstick, running."""
    with subprocess.Popen([sys.executable, "-m", "bench.plant", kind, url]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


async def _follow(url: str) -> None:
    """Take all that the OPC UA server says."""
    from asyncua.client.client import Client

    class Ignore:
        def datachange_notification(self, _node: object, _value: object, _data: object) -> None:
            pass

    async with Client(url) as client:
        line = await client.nodes.objects.get_child(["1:Line"])
        subscription = await client.create_subscription(1000, Ignore())
        await subscription.subscribe_data_change(await line.get_variables())
        await asyncio.Event().wait()


async def _poll(url: str) -> None:
    """Read all registers each second."""
    from pymodbus.client import AsyncModbusTcpClient

    host, _, port = url.removeprefix("tcp://").partition(":")
    client = AsyncModbusTcpClient(host, port=int(port))
    await client.connect()
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        for first in range(0, REGISTERS, REQUEST):
            await client.read_holding_registers(first, count=REQUEST)
        due += 1.0
        await asyncio.sleep(due - loop.time())


if __name__ == "__main__":
    asyncio.run({"opcua": _follow, "modbus": _poll}[sys.argv[1]](sys.argv[2]))
