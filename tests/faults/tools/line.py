"""A line as it is: a rate with a bounded queue before it, a round trip, loss, and windows between which
nothing passes. Both ends are programs of this machine, and their TCP is the kernel's.

A leaf dials `host`:`port` and the hub listens on `listen`. Both addresses belong to a TUN
device, from which a process of its own (`python -m tests.faults.tools.line`) reads each packet and gives it
back later with its addresses exchanged: what is sent to the far address arrives at the near one. So no kernel
module for queues or delay is needed, nor a network namespace. Any port may be dialled.

Each way has the rate for itself. A packet leaves the queue when the rate lets it, is lost by chance, and
arrives half a round trip later. A packet that finds the queue full is dropped. Only TCP is carried. Needs
root, `ip` and `/dev/net/tun`.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO, Any, Final

from agent.demo.loopback import free_port
from tests.faults.tools.packets import ACK, RST, SYN, Segment, reset, swapped

_TUN: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_BURST: Final = 64
"""Packets that are read before those that are due are given back."""
_LARGEST: Final = 65_536
_LEAST_QUEUE: Final = 15_000
_LEAST_QUEUE_SECONDS: Final = 0.25
_UNBOUNDED: Final = 1e12
_FAST: Final = 10e6
_MTU, _FAST_MTU = 1_500, 9_000


@dataclass(frozen=True, slots=True)
class Windows:
    """The line is up for so many seconds and then down, again and again, from when it is told so. When it
    goes down, it resets every connection and refuses new ones until it is up, as a router does that knows of
    no way; where `silent`, it loses each packet without a word, as a radio link does."""

    up: float
    down: float = 1.0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Quality:
    """What a line carries: bytes of IP packets a second, each way (0: as many as there are); the round trip
    in seconds; how many packets of a hundred are lost, each way."""

    rate: float = 0.0
    round_trip: float = 0.0
    loss: float = 0.0
    largest: int = 0
    """Bytes of the largest packet that is not lost without a word, as in a hole in the path MTU (0: any)."""
    windows: Windows | None = None

    @property
    def queue(self) -> float:
        """Bytes that wait before the line, each way: what passes in a round trip or in a quarter of a second,
        whichever is more, and ten whole packets at least."""
        return max(_LEAST_QUEUE, self.rate * max(self.round_trip, _LEAST_QUEUE_SECONDS))

    @property
    def mtu(self) -> int:
        """Large where the rate is, for the process that carries the packets handles some ten thousand a
        second."""
        return _FAST_MTU if self.rate >= _FAST else _MTU


@dataclass(slots=True)
class Passed:
    """Counts of one way since the line was made. `payload` is that of TCP in what was carried, and `repeated`
    that of segments which had been carried before."""

    packets: int = 0
    bytes: int = 0
    payload: int = 0
    repeated: int = 0
    waited: int = 0
    """Packets that found others in the queue."""
    lost: int = 0
    queue_full: int = 0
    down: int = 0


def missing() -> str | None:
    """Why no line can be made here, None where it can."""
    if os.geteuid() != 0:
        return "a TUN device needs root"
    if not _TUN.exists():
        return f"{_TUN} does not exist (modprobe tun)"
    return None if shutil.which("ip") else "ip not installed (apt-get install iproute2)"


class Line:
    """A line that is clear and up until it is told otherwise. Congestion control of both ends is `control`,
    whatever the machine's is."""

    def __init__(self, mtu: int = _MTU, control: str = "cubic") -> None:
        # A network of four addresses out of 240.0.0.0/4, which nothing else uses.
        network = 0xF0000000 + random.randrange(1, 2**24) * 4
        near, far = IPv4Address(network + 1), IPv4Address(network + 2)
        self._near, self.host, self.port = str(near), str(far), free_port()
        self.listen = f"{near}:{self.port}"
        self._name = f"line{network // 4 % 2**24:x}"
        self._mtu, self._control = mtu, control
        self._process: subprocess.Popen[str] | None = None

    @property
    def near(self) -> str:
        """The address on which the hub listens."""
        return self._near

    def open(self) -> None:
        """Make it. Raises `RuntimeError` with what a command said."""
        module = "tests.faults.tools.line"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.passed()
        _run("address", "add", self._near, "dev", self._name)
        _run("link", "set", self._name, "mtu", str(self._mtu), "txqueuelen", "10000", "up")
        _run("route", "add", self.host, "dev", self._name, "src", self._near, "congctl", self._control)

    def close(self) -> None:
        """Take it away; the device goes with its process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def set(self, quality: Quality) -> None:
        """Change what it carries, from now on. Windows begin now, with the line up."""
        self._tell("set", asdict(quality))

    def cut(self) -> None:
        """Reset every connection at both ends and refuse new ones."""
        self._tell("down", False)

    def stall(self) -> None:
        """Lose every packet: both ends see a half-open link."""
        self._tell("down", True)

    def restore(self) -> None:
        """Be up, and as good as new."""
        self.set(Quality())

    def passed(self) -> tuple[Passed, Passed]:
        """What went from the end that dials to the end that listens, and what came back."""
        up, back = self._tell("count", None)
        return Passed(**up), Passed(**back)

    def _tell(self, what: str, value: Any) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([what, value]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self._name} ended with {process.wait()}")
        return json.loads(answer)


@contextmanager
def line(quality: Quality | None = None) -> Iterator[Line]:
    """A line that is taken away with the context; its packets are as large as the quality's are."""
    one = Line((quality or Quality()).mtu)
    try:
        one.open()
        if quality is not None:
            one.set(quality)
        yield one
    finally:
        one.close()


@dataclass(slots=True)
class Way:
    """One direction: packets that wait or are under way, in the order in which they arrive."""

    passed: Passed = field(default_factory=Passed)
    under_way: deque[tuple[float, float, bytes, Segment]] = field(default_factory=deque)
    """When each packet has left the queue, when it arrives, and its segment."""
    carried: set[tuple[tuple[int, int], int]] = field(default_factory=set)
    """The segments with payload that have arrived, by ports and end."""
    free: float = 0.0
    """When the last packet has left the queue."""

    def put(
        self, packet: bytes, segment: Segment, quality: Quality, now: float, chance: random.Random
    ) -> None:
        """Take a packet in, or lose it."""
        rate = quality.rate or _UNBOUNDED
        begins = max(self.free, now)
        if (begins - now) * rate + len(packet) > quality.queue and begins > now:
            self.passed.queue_full += 1
            return
        self.passed.waited += begins > now
        self.free = begins + len(packet) / rate
        if chance.random() * 100 < quality.loss or 0 < quality.largest < len(packet):
            self.passed.lost += 1
            return
        self.under_way.append((self.free, self.free + quality.round_trip / 2, packet, segment))

    def lose(self, after: float) -> None:
        """Lose each packet that has not left the queue by then."""
        while self.under_way and self.under_way[-1][0] > after:
            self.under_way.pop()
            self.passed.down += 1
        self.free = 0.0

    def due(self, now: float) -> Iterator[bytes]:
        """The packets that have arrived."""
        while self.under_way and self.under_way[0][1] <= now:
            _, _, packet, segment = self.under_way.popleft()
            self.passed.packets += 1
            self.passed.bytes += len(packet)
            self.passed.payload += segment.size
            if segment.size:
                key = (segment.ports, segment.after)
                self.passed.repeated += segment.size if key in self.carried else 0
                self.carried.add(key)
            yield packet


class Forwarder:
    """Everything between the two ends. Times are those of `time.monotonic`."""

    def __init__(self, send: Callable[[bytes], object], seed: int = 1) -> None:
        self._send = send
        self._chance = random.Random(seed)
        self._quality = Quality()
        self._down: Windows | None = None
        self._turn: float | None = None
        self.ways = (Way(), Way())
        self._listening: set[int] = set()
        """Ports that were dialled: what goes there goes up."""
        self._newest: dict[tuple[int, int], tuple[Segment, bytes, bytes]] = {}
        """The last segment of each end of each connection, with the addresses of its answer."""
        self._dead: set[tuple[int, int]] = set()

    def told(self, what: str, value: Any, now: float) -> Any:
        """Do what the other process asks for, and return the answer."""
        if what == "set":
            windows = value.pop("windows")
            self._quality = Quality(**value, windows=Windows(**windows) if windows else None)
            self._restore(now)
        elif what == "down":
            self._turn = None
            self._break(Windows(0.0, silent=value), now)
        return [asdict(way.passed) for way in self.ways]

    def next(self) -> float | None:
        """When something is to be done, None where nothing is."""
        times = [way.under_way[0][1] for way in self.ways if way.under_way]
        return min([*times, *([] if self._turn is None else [self._turn])], default=None)

    def step(self, now: float) -> None:
        """Give back what has arrived by now."""
        while self._turn is not None and self._turn <= now:
            at, windows = self._turn, self._quality.windows
            assert windows is not None
            if self._down is None:
                self._break(windows, at)
                self._turn = at + windows.down
            else:
                self._restore(at)
        for way in self.ways:
            for packet in way.due(now):
                self._send(packet)

    def take(self, packet: bytes, now: float) -> None:
        """A packet that one end has sent."""
        segment = Segment.of(packet)
        if segment is None:
            return
        back = packet[16:20], packet[12:16]
        if segment.flags & (SYN | ACK) == SYN:
            self._listening.add(segment.ports[1])
            self._dead -= {segment.ports, segment.ports[::-1]}
        refused = self._down is not None and not self._down.silent
        if refused or segment.ports in self._dead:
            self.ways[segment.ports[1] not in self._listening].passed.down += 1
            if not segment.flags & RST:
                self._send(reset(segment, *back))
            return
        way = self.ways[segment.ports[1] not in self._listening]
        if self._down is not None:
            way.passed.down += 1
            return
        self._newest[segment.ports] = segment, *back
        way.put(swapped(packet), segment, self._quality, now, self._chance)

    def _break(self, windows: Windows, at: float) -> None:
        self._down = windows
        for way in self.ways:
            way.lose(at if windows.silent else 0.0)
        if windows.silent:
            return
        for way in self.ways:
            way.carried.clear()
        # An end whose newest acknowledgement had not been sent yet answers with it, and is reset by `take`.
        for segment, sender, receiver in self._newest.values():
            self._send(reset(segment, sender, receiver))
        self._dead |= self._newest.keys()
        self._newest.clear()

    def _restore(self, at: float) -> None:
        self._down = None
        windows = self._quality.windows
        self._turn = None if windows is None else at + windows.up


def _run(*command: str) -> None:
    done = subprocess.run(("ip", *command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(command)}: {done.stderr.strip()}")


def _open_device(name: str) -> int:
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _forward(name: str, asked: IO[str]) -> None:
    """Carry packets until the other process ends."""
    device = _open_device(name)
    one = Forwarder(partial(os.write, device))
    while True:
        due = one.next()
        wait = None if due is None else max(0.0, due - time.monotonic())
        # Not epoll, which rounds up to milliseconds.
        ready, _, _ = select.select([device, asked.fileno()], [], [], wait)
        now = time.monotonic()
        one.step(now)
        if device in ready:
            for _ in range(_BURST):
                try:
                    packet = os.read(device, _LARGEST)
                except BlockingIOError:
                    break
                one.take(packet, now)
        if asked.fileno() in ready:
            text = asked.readline()
            if not text:
                return
            what, value = json.loads(text)
            print(json.dumps(one.told(what, value, now)), flush=True)


if __name__ == "__main__":
    _forward(sys.argv[1], sys.stdin)
