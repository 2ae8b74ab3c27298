"""Mirrors and sources that the configuration declares: observe, decide, act."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.metrics import Metrics
from agent.config import Config

if TYPE_CHECKING:
    from agent.mirrors.controller import MirrorController


def mirror_controller(config: Config, metrics: Metrics) -> MirrorController | None:
    """The controller of the declared links, None if the configuration declares none. It is imported late: an
    agent without declared links does not hold it in memory."""
    if not config.mirror and not config.source:
        return None
    from agent.mirrors.controller import make_controller

    return make_controller(config, metrics)
