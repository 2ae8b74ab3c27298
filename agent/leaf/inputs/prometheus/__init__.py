"""The options of the input `prometheus`."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from agent.config import Seconds, Size
from agent.leaf.inputs.shared import InputOptions


class PrometheusOptions(InputOptions, tag="prometheus", kw_only=True):
    """The options of one `prometheus` input. deploy/reference.toml says what each means."""

    name: str = "prometheus"
    urls: list[str]
    interval: Seconds = Seconds(15.0)
    timeout: Seconds = Seconds(10.0)
    body: Size = Size(4 * 2**20)
    device: str | None = None
    keep: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    token_file: Path | None = None
    tls_ca: Path | None = None
