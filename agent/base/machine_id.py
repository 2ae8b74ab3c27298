"""The identity of this machine, which outlives its state directory."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")


def machine_id(known: str | None = None) -> str:
    """An id of this machine that does not reveal the machine-id itself (machine-id(5) asks for a keyed hash);
    where there is none the `known` one, or a random one."""
    text = _MACHINE_ID.read_text().strip() if _MACHINE_ID.exists() else ""
    if not text:
        return known or uuid.uuid4().hex[:16]
    return hashlib.blake2b(text.encode(), key=b"petiole", digest_size=8).hexdigest()
