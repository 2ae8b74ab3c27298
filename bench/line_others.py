"""The other sides of the benchmark `lines`: rsync, a bridge of mosquitto, and plain TCP as the yardstick."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from agent.demo.loopback import free_port
from bench.line_sides import DOMAIN, Side, Way, numbered, piece
from tests.harness.mqtt_broker import Mosquitto

_READ: Final = 64
_AGAIN_SECONDS: Final = 0.1
_BLOCK: Final = 65_536


@dataclass(slots=True)
class _Rsync:
    """One file that grows at the hub; started again whenever it ends."""

    way: Way
    here: Path
    there: Path
    tasks: asyncio.TaskGroup
    running: asyncio.Task[None] | None = None

    async def store(self, count: int) -> None:
        with self.here.open("wb") as file:
            for number in range(count):
                file.write(piece(number, self.way.piece))
        self.running = self.tasks.create_task(self._insist())

    async def _insist(self) -> None:
        target = f"rsync://{self.way.line.host}:{self.way.line.port}/hub/{self.there.name}"
        options = ("--append", "--inplace", "--timeout=20", "--contimeout=10", "-q")
        while True:
            with (self.here.parent / "rsync.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    "rsync", *options, str(self.here), target, stdout=log, stderr=log
                )
            try:
                if await process.wait() == 0:
                    return
            finally:
                if process.returncode is None:
                    process.kill()
            await asyncio.sleep(_AGAIN_SECONDS)

    def arrived(self) -> int:
        return self.there.stat().st_size // self.way.piece if self.there.exists() else 0

    async def pieces(self) -> Counter[int]:
        size, count = self.way.piece, self.arrived()
        if not count:
            return Counter()
        with self.there.open("rb") as file:
            return numbered(file.read(size) for _ in range(count))


@asynccontextmanager
async def rsync(directory: Path, way: Way) -> AsyncIterator[Side]:
    """A daemon at the hub, and `rsync --append` to it in a loop. Its result at the hub is a file that no
    program has synced."""
    host, _, port = way.line.listen.rpartition(":")
    there, config = directory / "hub", directory / "rsyncd.conf"
    there.mkdir()
    config.write_text(
        f"port = {port}\naddress = {host}\nuse chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
        f"timeout = 20\n[hub]\npath = {there}\nread only = no\n"
    )
    if shutil.which("rsync") is None:
        raise RuntimeError("rsync not installed (apt-get install rsync)")
    command = ("rsync", "--daemon", "--no-detach", f"--config={config}", f"--log-file={directory / 'log'}")
    daemon = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.TaskGroup() as tasks:
            side = _Rsync(way, directory / "pieces", there / "pieces", tasks)
            yield side
            if side.running is not None:
                side.running.cancel()
    finally:
        daemon.terminate()
        await daemon.wait()


@dataclass(slots=True)
class _Bridge:
    """Two brokers; a program at the hub subscribes to all that comes."""

    port: int
    way: Way
    came: Counter[int] = field(default_factory=Counter)
    wrong: int = 0

    async def store(self, count: int) -> None:
        await asyncio.to_thread(self._publish, count)

    def _publish(self, count: int) -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        for begin in range(0, count, _READ):
            span = range(begin, min(begin + _READ, count))
            for sent in [client.publish("pieces", piece(n, self.way.piece), 1) for n in span]:
                sent.wait_for_publish(60.0)
        client.disconnect()
        client.loop_stop()

    def see(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        """Count a message that has come to the hub."""
        try:
            self.came += numbered([bytes(message.payload)])
        except ValueError:
            self.wrong += 1

    def arrived(self) -> int:
        return len(self.came)

    async def pieces(self) -> Counter[int]:
        if self.wrong:
            raise ValueError(f"{self.wrong} pieces are not as they were sent")
        return Counter(self.came)


@asynccontextmanager
async def bridge(directory: Path, way: Way) -> AsyncIterator[Side]:
    """mosquitto at both ends, bridged with QoS 1, a message a piece. Twice what the line holds in a round
    trip may be under way, 20 messages at least. `restart_timeout` has two numbers, for mosquitto 2.0.11
    waits 5 s and more with a single number."""
    host, _, port = way.line.listen.rpartition(":")
    under_way = max(20, math.ceil(2 * way.rate * way.round_trip / way.piece))
    shared = f"allow_anonymous true\nmax_inflight_messages {under_way}\n"
    here = (
        f"connection hub\naddress {way.line.host}:{way.line.port}\ntopic # out 1\ncleansession false\n"
        "restart_timeout 1 1\nnotifications false\ntry_private true\n"
    )
    hub = Mosquitto(directory / "hub", free_port(), f"{shared}listener {port} {host}\n")
    leaf = Mosquitto(directory / DOMAIN, free_port(), shared + here)
    side = _Bridge(leaf.port, way)
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = side.see
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    async with AsyncExitStack() as stack:
        for broker in (hub, leaf):
            stack.callback(broker.stop)
            await asyncio.to_thread(broker.start)
        client.connect("127.0.0.1", hub.port)
        client.loop_start()
        stack.callback(client.loop_stop)
        stack.callback(client.disconnect)
        client.subscribe("#", 1)
        if not await asyncio.to_thread(subscribed.wait, 30.0):
            raise RuntimeError("the hub's broker does not answer")
        yield side


@dataclass(slots=True)
class _Tcp:
    """A program that sends zeros, and dials again at once. The hub tells it where to go on."""

    way: Way
    got: int = 0
    end: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    async def store(self, count: int) -> None:
        self.end = count * self.way.piece
        threading.Thread(target=self._send, daemon=True).start()

    def take(self, listening: socket.socket) -> None:
        """Take bytes in, on one connection after the other."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self.got.to_bytes(8, "big"))
            while data := connection.recv(_BLOCK * 16):
                self.got += len(data)

    def _send(self) -> None:
        data = memoryview(bytes(_BLOCK))
        while not self.over.is_set():
            try:
                with socket.create_connection((self.way.line.host, self.way.line.port), 10.0) as connection:
                    connection.settimeout(20.0)
                    told = connection.recv(8, socket.MSG_WAITALL)
                    if len(told) < 8:
                        continue
                    at = int.from_bytes(told, "big")
                    while at < self.end:
                        at += connection.send(data[: self.end - at])
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)
                    return
            except OSError:
                self.over.wait(0.01)

    def arrived(self) -> int:
        return self.got // self.way.piece

    async def pieces(self) -> Counter[int]:
        return Counter(range(self.arrived()))


@asynccontextmanager
async def tcp(directory: Path, way: Way) -> AsyncIterator[Side]:
    """The yardstick: as much as one connection carries, without a word of what it is."""
    side = _Tcp(way)
    host, _, port = way.line.listen.rpartition(":")
    with socket.create_server((host, int(port))) as listening:
        threading.Thread(target=side.take, args=(listening,), daemon=True).start()
        try:
            yield side
        finally:
            side.over.set()
