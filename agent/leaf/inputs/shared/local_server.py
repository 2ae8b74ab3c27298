"""Where the leaf's own server is, for inputs that are its clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalServer:
    """The leaf's own server, and the seed of the agent's identity there."""

    url: str
    seed_file: Path
