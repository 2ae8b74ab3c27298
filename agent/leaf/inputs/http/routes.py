"""Maps paths to protocols of the HTTP input. To add one, derive `Route` and add its paths to `ROUTES`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from agent.leaf.inputs.http.request import READINGS_PATH
from agent.leaf.inputs.http.responses import HttpError, at_fault
from agent.leaf.inputs.http.route import Route, RouteSettings

OTLP_PATH: Final = "/v1/metrics"
OTLP_LOGS_PATH: Final = "/v1/logs"
REMOTE_WRITE_PATH: Final = "/api/v1/write"
QUERY_PATH: Final = "/query"

ROUTES: Final = {
    READINGS_PATH: "readings:ReadingsRoute",
    "/write": "influx:InfluxRoute",
    "/api/v2/write": "influx:InfluxRoute",
    QUERY_PATH: "influx:QueryRoute",
    OTLP_PATH: "otlp:OtlpRoute",
    OTLP_LOGS_PATH: "otlp:OtlpLogsRoute",
    REMOTE_WRITE_PATH: "remote_write:RemoteWriteRoute",
}
"""By path of posts and of InfluxDB queries."""
OPTIONS: Final = {OTLP_PATH: "otlp", OTLP_LOGS_PATH: "otlp", REMOTE_WRITE_PATH: "remote_write"}
"""The option that a path needs."""


class Routes:
    """The routes of one input, created on first use and kept for their caches."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings
        self._made: dict[str, Route[Any]] = {}

    def find(self, path: str) -> Route[Any] | None:
        """Return the route of a path, or None."""
        place = ROUTES.get(path)
        if self._settings.mapping is not None and f"{path}/".startswith(f"{READINGS_PATH}/"):
            place = "mapped:MappedRoute"
        if place is None or (path in OPTIONS and not getattr(self._settings, OPTIONS[path])):
            return None
        route = self._made.get(place)
        if route is None:
            module, _, name = place.partition(":")
            make = getattr(import_module(f"agent.leaf.inputs.http.{module}"), name)
            route = self._made[place] = make(self._settings)
        return route


def not_found(path: str) -> HttpError:
    """Return the refusal of an unknown path with remedy."""
    if path in OPTIONS:
        return at_fault(404, "path", f"{path} is not served here (option {OPTIONS[path]})")
    return at_fault(404, "path", f"there is nothing at this path: readings go to POST {READINGS_PATH}")
