"""Senders that number their readings and remember when each was acknowledged."""

from __future__ import annotations

import http.client
import threading
import time
from datetime import UTC, datetime
from typing import Final

METRIC: Final = "serial"
READINGS: Final = 10
_ANSWER_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 1.0
"""Each try costs a guest two processes, and its only processor is slow."""
_PACE_SECONDS: Final = 0.02


class Load:
    """Senders of an agent's `http` input, each one request after the other and each request under its key
    until it is acknowledged. `acknowledged` has, by device, when (monotonic seconds) each reading was; their
    values count from 1."""

    def __init__(self, port: int, senders: int = 4) -> None:
        self._port = port
        self.acknowledged: dict[str, list[float]] = {f"sender-{number}": [] for number in range(senders)}
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(one,)) for one in self.acknowledged]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """How many readings were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def end(self) -> None:
        """Send no more; returns when what was begun is acknowledged or given up."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _send(self, device: str) -> None:
        acknowledged = self.acknowledged[device]
        while not self._ending.wait(_PACE_SECONDS):
            first = len(acknowledged) + 1
            now = datetime.now(UTC).isoformat()
            lines = (
                f'{{"ts":"{now}","device":"{device}","metric":"{METRIC}","value":{value}}}\n'
                for value in range(first, first + READINGS)
            )
            if self._stored("".join(lines).encode(), f"{device}-{first}"):
                acknowledged.extend([time.monotonic()] * READINGS)

    def _stored(self, body: bytes, key: str) -> bool:
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        while not self._ending.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
            try:
                connection.request("POST", "/v1/readings", body, headers)
                if connection.getresponse().status == http.HTTPStatus.NO_CONTENT:
                    return True
            except (OSError, http.client.HTTPException):
                pass  # stored or not: the next try under the same key is stored once
            finally:
                connection.close()
            self._ending.wait(_RETRY_SECONDS)
        return False
