"""What a server tells of its own memory and of what it stores, over its monitoring port."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 2.0
_MIB = 2**20


def monitored(ports: Path) -> str:
    """The line of `[nats]` with which a server listens on a port that the system chooses, and tells it in a
    file in this directory. Its own process does that alone; petiole never asks it over HTTP."""
    return f'extra = {{ http = "127.0.0.1:-1", ports_file_dir = {json.dumps(str(ports))} }}'


def inside(ports: Path, pid: int) -> dict[str, float]:
    """Of the server with this process id, in MiB: what is alive in its heap, what the heap takes with what is
    not collected yet, what it keeps free of it, and what its streams hold. Raises `OSError`, `ValueError` and
    `LookupError` where it does not answer."""
    found = next(ports.glob(f"*_{pid}.ports"), None)
    if found is None:
        raise LookupError(f"no server {pid} tells its port")
    address = json.loads(found.read_text())["monitoring"][0]
    heap = _read(f"{address}/debug/vars")["memstats"]
    return {
        # By default Go collects when the heap is twice what the last collection left, but not below 4 MiB
        # (https://go.dev/doc/gc-guide#GOGC); so this does not rise and fall with the collections.
        "live_mib": heap["NextGC"] / 2 / _MIB,
        "heap_mib": heap["HeapInuse"] / _MIB,
        "free_mib": (heap["HeapIdle"] - heap["HeapReleased"]) / _MIB,
        "stored_mib": _read(f"{address}/jsz")["storage"] / _MIB,
    }


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
        return json.load(answer)
