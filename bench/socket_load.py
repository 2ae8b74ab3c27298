"""The load of a `socket` input: connections that write prepared lines to a Unix socket as fast as it takes
them, a thread each.

`python -m bench.socket_load PATH CONNECTIONS READINGS`; ends with its standard input.
"""

from __future__ import annotations

import socket
import sys
import threading

from bench.load import body


def send(path: str, connection: int, readings: int) -> None:
    """Write until the process ends."""
    prepared = [body(readings, connection * 8 + variant) for variant in range(8)]
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        while True:
            for lines in prepared:
                one.sendall(lines)


def main(path: str, connections: int, readings: int) -> None:
    """Start the connections, and wait for the end of the input."""
    for connection in range(connections):
        threading.Thread(target=send, args=(path, connection, readings), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
