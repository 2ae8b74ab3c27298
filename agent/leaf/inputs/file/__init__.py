"""The options of the input `file`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from agent import contract
from agent.config import Seconds, Size
from agent.config.values import FILES
from agent.leaf.inputs.shared import LineOptions


class FileOptions(LineOptions, tag="file", kw_only=True):
    """The options of one `file` input. deploy/reference.toml says what each means."""

    name: str = "file"
    path: Annotated[str | list[str], FILES]
    pulls: ClassVar[bool] = True
    start: Literal["beginning", "end"] | None = None
    poll: Seconds = Seconds(0.25)
    line: Size = Size(contract.MAX_BATCH_BYTES)
