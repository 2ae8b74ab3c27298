"""The protocols that the HTTP input speaks, by path. To add a protocol derive `Route` and add its paths to
`ROUTES`."""

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
"""Module and class by the paths to which readings are posted, and the questions of InfluxDB's clients. An
agent to which nothing speaks a protocol does not hold its module in memory."""
OPTIONS: Final = {OTLP_PATH: "otlp", OTLP_LOGS_PATH: "otlp", REMOTE_WRITE_PATH: "remote_write"}
"""The option that a path needs."""


class Routes:
    """The routes of one input. Each is made for its first request and kept, for it may remember names."""

    def __init__(self, settings: RouteSettings) -> None:
        self._settings = settings
        self._made: dict[str, Route[Any]] = {}

    def find(self, path: str) -> Route[Any] | None:
        """The route of a path, None where there is none."""
        place = ROUTES.get(path)
        if place is None or (path in OPTIONS and not getattr(self._settings, OPTIONS[path])):
            return None
        route = self._made.get(place)
        if route is None:
            module, _, name = place.partition(":")
            make = getattr(import_module(f"agent.leaf.inputs.http.{module}"), name)
            route = self._made[place] = make(self._settings)
        return route


def not_found(path: str) -> HttpError:
    """The refusal of a path that no route serves, and what to do."""
    if path in OPTIONS:
        return at_fault(404, "path", f"{path} is not served here (option {OPTIONS[path]})")
    return at_fault(404, "path", f"there is nothing at this path: readings go to POST {READINGS_PATH}")
