"""`python -m tests.fuzz.cost --seconds 60`: what a request of at most 64 kB costs in CPU and memory, over
the parsers of lines, which are repeated, mixed and damaged, plain and packed.

A body may cost `SECONDS` and `BYTES`, and `EACH` for a reading that is made of it or a bad line that is kept:
what is stored has its price, all else must be cheap. What costs more is named with its seed; exit code 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import zstandard

from agent.decoder import BadLinesError, TooLargeError, decode_array, decode_slices, join_decoded
from agent.inputs.formats.forms import make_form
from agent.inputs.formats.line_protocol import LineProtocol, Parsing
from agent.inputs.formats.message import MessageError, Place
from agent.inputs.http.unpack import UnpackedTooLargeError, allowance, unpack
from agent.inputs.nats.hearing import lines_of
from agent.inputs.sift import join_sifted, sift

CAME: Final = 64_000
LIMIT: Final = 16 * 2**20
SECONDS: Final = 0.1
EACH: Final = 10e-6
BYTES: Final = 16 * 10**6
EACH_BYTES: Final = 500
_NOW: Final = 1_790_000_000_000_000_000

LINES: Final = (
    b"\n",
    b"  \n",
    b"\r\n",
    b"#\n",
    b"x\n",
    b"1\n",
    b"{}\n",
    b"[]\n",
    b'"a"\n',
    b"m v=1\n",
    b'm v="x"\n',
    b'm v="\n',
    b"m\\,\n",
    b"m,t=a,t=b v=1\n",
    b'{"metric":"m","value":1}\n',
    b'{"metric":"\\u0061","value":1}\n',
    b'{"ts":1,"device":"d","metric":"m","value":1}\n',
    b"m,t=" + b"x" * 900 + b" " + b",".join(b"a%d=1" % number for number in range(100)) + b"\n",
)


def _slices(body: bytes, room: int) -> int:
    return join_decoded(list(decode_slices(body, "edge-1", _NOW, room))).count


def _array(body: bytes, _room: int) -> int:
    return decode_array(body[: 2**20], "edge-1", _NOW).count


def _written(body: bytes, room: int) -> int:
    parsing = Parsing(body, LineProtocol("edge-1", "host"), 1, _NOW, room)
    while parsing.step():
        pass
    return len(parsing.payload) and parsing.count


def _message(body: bytes, _room: int) -> int:
    return sift(lines_of(body[:CAME], Place("d", "m")), "edge-1", _NOW).count


def _lines(kind: str) -> Callable[[bytes, int], int]:
    def parse(body: bytes, _room: int) -> int:
        form = make_form(
            "influx" if kind == "influx" else "ndjson", "edge-1", precision="ns", device_tag="host"
        )
        found = join_sifted(list(form.parts(body[:CAME], _NOW)))
        return found.count + len(found.bad)

    return parse


PARSERS: Final[dict[str, Callable[[bytes, int], int]]] = {
    "ndjson": _slices,
    "array": _array,
    "write": _written,
    "nats": _message,
    "socket ndjson": _lines("ndjson"),
    "socket influx": _lines("influx"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds, the peak of memory in bytes, and the readings or bad lines that were made."""

    seconds: float
    peak: int
    count: int

    def is_fair(self, patience: float = 1.0) -> bool:
        """Whether that is within the bounds; a busy machine has more `patience` with the CPU."""
        may = (SECONDS + EACH * self.count) * patience
        return self.seconds <= may and self.peak <= BYTES + EACH_BYTES * self.count


def made(seed: int) -> bytes:
    """What a sender could send, unpacked: a few lines, repeated and damaged."""
    draws = random.Random(seed)
    some = b"".join(draws.choices(LINES, k=draws.choice((1, 1, 2, 5))))
    size = draws.choice((CAME, CAME, 2**20, 200 * CAME))
    body = bytearray((some * (size // len(some) + 1))[:size])
    for _ in range(draws.choice((0, 1, 20))):
        body[draws.randrange(size)] = draws.choice(b' \n"\\{}=,#\xff\x00')
    return bytes(body)


def request(body: bytes) -> tuple[bytes, str]:
    """The request that carries a body, and its encoding: packed where it would be too large."""
    if len(body) <= CAME:
        return body, ""
    return zstandard.ZstdCompressor(level=3).compress(body), "zstd"


def cost(name: str, came: bytes, encoding: str) -> Cost:
    """What a request costs, from its bytes to its readings."""

    def run() -> int:
        with suppress(BadLinesError, TooLargeError, MessageError, UnpackedTooLargeError):
            body = unpack(came, encoding, allowance(len(came), LIMIT)) if encoding else came
            return PARSERS[name](body, allowance(len(came), LIMIT))
        return 0

    began = time.process_time()
    count = run()
    seconds = time.process_time() - began
    tracemalloc.start()
    try:
        run()
        return Cost(seconds, tracemalloc.get_traced_memory()[1], count)
    finally:
        tracemalloc.stop()


def unfair(seeds: Iterator[int], until: float) -> Iterator[str]:
    """The requests that cost too much."""
    for seed in seeds:
        if time.monotonic() >= until:
            return
        came, encoding = request(made(seed))
        for name in PARSERS if len(came) <= CAME else ():
            found = cost(name, came, encoding)
            if not found.is_fair() and not (found := cost(name, came, encoding)).is_fair():
                yield (
                    f"{name}, seed {seed}, {len(came)} bytes {encoding}: {found.seconds * 1e3:.0f} ms, "
                    f"{found.peak / 1e6:.1f} MB for {found.count} lines"
                )


def main() -> int:
    """Look for the time given, and return the exit code."""
    parser = argparse.ArgumentParser(prog="cost")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    seeds = iter(range(given.first, given.first + 2**32))
    found = list(unfair(seeds, time.monotonic() + given.seconds))
    print("\n".join(found) or "cost: well", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
