"""The load of the benchmarks: plain sockets that send one prepared request again and again, a thread a
connection.

`python -m bench.load PORT CONNECTIONS LINES`: answers each line on its standard input with the number of
requests that were answered 204 so far; ends with its input. Any other answer ends it with an error.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading

_SITES = ("north", "south", "east", "west")


def body(lines: int, seed: int) -> bytes:
    """NDJSON of about 120 bytes a line, with values, devices and times that differ."""
    chance = random.Random(seed)
    return "".join(
        f'{{"ts":{1_790_000_000 + seed * 60 + line * 0.1:.3f},"device":"pump-{chance.randrange(100):02d}",'
        f'"metric":"pressure","value":{chance.gauss(20, 3):.3f},'
        f'"tags":{{"site":"{chance.choice(_SITES)}","line":"a{chance.randrange(9)}"}}}}\n'
        for line in range(lines)
    ).encode()


def request(lines: int, seed: int) -> bytes:
    """A whole HTTP request."""
    payload = body(lines, seed)
    head = (
        "POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


class Counter:
    """Requests answered, by connection, so that no lock is needed."""

    def __init__(self, connections: int) -> None:
        self._counts = [0] * connections

    def add(self, connection: int) -> None:
        """One more."""
        self._counts[connection] += 1

    def total(self) -> int:
        """Over all connections."""
        return sum(self._counts)


def send(port: int, connection: int, lines: int, counter: Counter) -> None:
    """Send until the process ends."""
    requests = [request(lines, seed=connection * 8 + variant) for variant in range(8)]
    with socket.create_connection(("127.0.0.1", port)) as one:
        while True:
            for prepared in requests:
                one.sendall(prepared)
                answer = one.recv(65536)
                if not answer.startswith(b"HTTP/1.1 204"):
                    os.write(2, answer[:500] + b"\n")
                    os._exit(1)
                counter.add(connection)


def main(port: int, connections: int, lines: int) -> None:
    """Start the connections and answer questions about their count."""
    counter = Counter(connections)
    for connection in range(connections):
        threading.Thread(target=send, args=(port, connection, lines, counter), daemon=True).start()
    for _ in sys.stdin:
        print(counter.total(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
