"""Reloads the configuration file while the agent runs: finds what changed, and applies only that."""

from agent.process.reload.change import ConfigChange, Parts, change, parts
from agent.process.reload.reloader import KEPT_SECONDS, Applied, Files, Reloader, ReloadError

__all__ = [
    "KEPT_SECONDS",
    "Applied",
    "ConfigChange",
    "Files",
    "Parts",
    "ReloadError",
    "Reloader",
    "change",
    "parts",
]
