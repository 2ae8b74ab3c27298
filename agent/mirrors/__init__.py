"""Observes and repairs declared mirrors and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.metrics import Metrics
from agent.config import Config

if TYPE_CHECKING:
    from agent.mirrors.controller import MirrorController


def mirror_controller(config: Config, metrics: Metrics) -> MirrorController | None:
    """Return the controller of declared links, None without any; imported late for memory."""
    if not config.mirror and not config.source:
        return None
    from agent.mirrors.controller import make_controller

    return make_controller(config, metrics)
