"""Taking the configuration file anew while the agent runs: what changed, and bringing just that in."""

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
