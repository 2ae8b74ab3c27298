"""What the options of every input have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from msgspec import Struct, field

from agent import contract
from agent.leaf.intake import Level


class InputOptions(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """The base of an input's options; each gives `name` a default, says its `tag`, which is its type, and
    says `kw_only` again. `name` stands in batch subjects and metrics, `class_` is the class of the readings,
    `ack` says what an acknowledgement means."""

    name: str
    class_: str = field(name="class", default=contract.DEFAULT_CLASS)
    ack: Level = "stored"
    pulls: ClassVar[bool] = False
    """Whether the input has positions, so that its source still has what is not stored."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """The leaf's own server, and the seed of the agent's identity there."""

    url: str
    seed_file: Path
