"""The options of the input `host`."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from agent.config import Seconds
from agent.leaf.inputs.shared import InputOptions

Group = Literal[
    "cpu",
    "memory",
    "disk",
    "network",
    "temperature",
    "system",
    "pressure",
    "sockets",
    "cores",
    "fans",
    "battery",
    "container",
]
USUAL: Final[tuple[Group, ...]] = (
    "cpu",
    "memory",
    "disk",
    "network",
    "temperature",
    "system",
    "pressure",
    "sockets",
)
"""What is collected unless it is said otherwise."""
GROUPS: Final[tuple[Group, ...]] = (*USUAL, "cores", "fans", "battery", "container")


class HostOptions(InputOptions, tag="host", kw_only=True):
    """The options of one `host` input. deploy/reference.toml says what each means."""

    name: str = "host"
    interval: Seconds = Seconds(10.0)
    collect: list[Group] = msgspec.field(default_factory=lambda: list(USUAL))
    mounts: list[str] = msgspec.field(default_factory=list)
    no_mounts: list[str] = msgspec.field(default_factory=list)
