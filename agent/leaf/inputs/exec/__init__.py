"""The options of the input `exec`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import field

from agent.config import Seconds, Size
from agent.leaf.inputs.shared import LineOptions

_INHERITED: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ")


class ExecOptions(LineOptions, tag="exec", kw_only=True):
    """The options of one `exec` input. deploy/reference.toml says what each means."""

    name: str = "exec"
    command: list[str]
    interval: Seconds | None = None
    timeout: Seconds = Seconds(30.0)
    output: Size = Size(16 * 2**20)
    directory: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    line: Size = Size(64 * 1024)
    whole: bool = False

    def variables(self) -> dict[str, str]:
        own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {**own, **self.environment}
