"""Generates load: HTTP senders of numbered readings, and a program that writes a file.

Senders run as `python -m agent.demo.load SECONDS RATE DOMAIN=URL…`, repeat each request under its
Idempotency-Key, and print JSON counts every second, the last with `final`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

SENDERS = 4
READINGS = 100
_ANSWER_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_GRACE_SECONDS = 40.0
_REPORT_SECONDS = 1.0
FILE_DEVICE = "file"
_STEPS_PER_SECOND = 10


def device(number: int) -> str:
    return f"sender-{number}"


def body(sender: int, request: int) -> bytes:
    """Return a request's readings: `serial` counts from 1."""
    now = datetime.now(UTC).isoformat()
    first = request * READINGS + 1
    lines = (
        f'{{"ts":"{now}","device":"{device(sender)}","metric":"serial","value":{serial},"tags":{{"site":"demo"}}}}\n'
        for serial in range(first, first + READINGS)
    )
    return "".join(lines).encode()


@dataclass(slots=True)
class SenderTotals:
    """A domain's counts; `acknowledged` by device."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    unanswered: int = 0


def send(url: str, domain: str, sender: int, rate: float, until: float, count: SenderTotals) -> None:
    """Send a request each 1/`rate` seconds until `until` (monotonic), each until acknowledged."""
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_SECONDS)
    request, due = 0, monotonic()
    while monotonic() < until:
        key, payload = f"{domain}-{sender}-{request}", body(sender, request)
        if not acknowledged(connection, key, payload, until + _GRACE_SECONDS, count):
            count.unanswered += READINGS
            return
        request += 1
        count.acknowledged[device(sender)] = request * READINGS
        due += 1 / rate
        sleep(max(0.0, due - monotonic()))


def acknowledged(
    connection: HTTPConnection, key: str, payload: bytes, until: float, count: SenderTotals
) -> bool:
    """Send a request until 204; False after `until`."""
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
    while monotonic() < until:
        try:
            connection.request("POST", "/v1/readings", payload, headers)
            with connection.getresponse() as answer:
                answer.read()
                if answer.status == 204:
                    return True
        except (HTTPException, OSError):
            connection.close()  # unanswered: it may be stored or not, so it goes again under the same key
        count.repeated += 1
        sleep(_RETRY_SECONDS)
    return False


def main(seconds: float, rate: float, urls: dict[str, str]) -> None:
    """Send `rate` readings a second per domain for `seconds`, then print counts."""
    until = monotonic() + seconds
    counts = {domain: SenderTotals() for domain in urls}
    with ThreadPoolExecutor(SENDERS * len(urls)) as threads:
        tasks = [
            threads.submit(send, url, domain, sender, rate / READINGS / SENDERS, until, counts[domain])
            for domain, url in urls.items()
            for sender in range(SENDERS)
        ]
        while wait(tasks, _REPORT_SECONDS).not_done:
            report(counts, final=False)
        for task in tasks:
            task.result()
    report(counts, final=True)


def report(counts: dict[str, SenderTotals], *, final: bool) -> None:
    """Print counts as JSON."""
    domains = {
        domain: {
            "acknowledged": totals.acknowledged,
            "repeated": totals.repeated,
            "unanswered": totals.unanswered,
        }
        for domain, totals in counts.items()
    }
    print(json.dumps({"final": final, "domains": domains}), flush=True)


async def write_lines(path: Path, rate: int, seconds: float) -> int:
    """Append about `rate` readings a second for `seconds` to a followed file; returns their number."""
    loop = asyncio.get_running_loop()
    start, written = loop.time(), 0
    with path.open("a", encoding="ascii") as file:
        while (elapsed := loop.time() - start) < seconds:
            now = datetime.now(UTC).isoformat()
            while written < elapsed * rate:
                written += 1
                file.write(f'{{"ts":"{now}","device":"{FILE_DEVICE}","metric":"serial","value":{written}}}\n')
            file.flush()
            await asyncio.sleep(1 / _STEPS_PER_SECOND)
    return written


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), dict(pair.split("=", 1) for pair in sys.argv[3:]))
