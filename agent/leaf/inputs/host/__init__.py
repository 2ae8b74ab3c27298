"""The options of the input `host`."""

from __future__ import annotations

from typing import Final, Literal, get_args

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
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
USUAL: Final = GROUPS[: GROUPS.index("cores")]
"""Groups collected by default."""


class HostOptions(InputOptions, tag="host", kw_only=True):
    """The options of one `host` input. deploy/reference.toml says what each means."""

    name: str = "host"
    interval: Seconds = Seconds(10.0)
    collect: list[Group] = msgspec.field(default_factory=lambda: list(USUAL))
    mounts: list[str] = msgspec.field(default_factory=list)
    no_mounts: list[str] = msgspec.field(default_factory=list)
