"""What a Grafana dashboard is made of, and its JSON: the classic model, which Grafana 10 and newer import.

It knows nothing of what is shown; leaf.py, hub.py, fleet.py and jobs.py say that.
Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

_WIDTH: Final = 24
_SCHEMA: Final = 39
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class Kind(StrEnum):
    """How a panel shows its queries; the values are Grafana's."""

    LINES = "timeseries"
    VALUE = "stat"
    STATES = "state-timeline"
    TABLE = "table"


class Unit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    BYTES = "bytes"
    BYTES_A_SECOND = "binBps"
    SECONDS = "s"
    SHARE = "percentunit"


@dataclass(frozen=True)
class Query:
    """A PromQL expression and what its series are called; in a table the name and unit of its column."""

    expression: str
    name: str = ""
    unit: Unit | None = None


@dataclass(frozen=True)
class Words:
    """What is shown for 1 and for 0. `good` is the one of them that is green, the other one is red."""

    one: str
    zero: str
    good: int = 1


@dataclass(frozen=True)
class Panel:
    """One panel; width and height are in cells, of which 24 are a line. `says` is shown where the pointer
    rests on the title. From `alarm` on a value is red, or below it where `alarm_below`. `columns` are the
    labels that a table keeps; its first query sorts it, the smallest value first."""

    title: str
    queries: Sequence[Query]
    says: str = ""
    kind: Kind = Kind.LINES
    unit: Unit = Unit.COUNT
    width: int = 8
    height: int = 7
    words: Words | None = None
    alarm: float | None = None
    alarm_below: bool = False
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """Panels of one topic below a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label. `every` allows all at once."""

    name: str
    label: str
    values: str
    every: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A whole dashboard; `uid` is what links name."""

    uid: str
    title: str
    says: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    def panels(self) -> list[Panel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


def text(board: Dashboard) -> str:
    """The JSON of a dashboard as it stands in its file."""
    model = {
        "uid": board.uid,
        "title": board.title,
        "description": board.says,
        "tags": ["petiole"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Petiole",
                "tags": ["petiole"],
                "keepTime": True,
                "asDropdown": True,
            }
        ],
        "templating": {"list": [_source(), *(_variable(one) for one in board.variables)]},
        "panels": _placed(board.rows),
    }
    return json.dumps(model, indent=2) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(one: Variable) -> dict[str, Any]:
    return {
        "name": one.name,
        "label": one.label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": one.values,
        "query": {"query": one.values, "refId": one.name},
        "refresh": 2,
        "sort": 1,
        "multi": one.every,
        "includeAll": one.every,
        # Also a series without the label.
        "allValue": ".*" if one.every else None,
        "current": {"text": ["All"], "value": ["$__all"]} if one.every else {},
    }


def _placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Headings and panels with their places: from left to right, a new line where one is full."""
    made: list[dict[str, Any]] = []
    down = 0
    for row in rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": down, "w": _WIDTH, "h": 1},
            }
        )
        down += 1
        across = tallest = 0
        for panel in row.panels:
            if across + panel.width > _WIDTH:
                down, across, tallest = down + tallest, 0, 0
            place = {"x": across, "y": down, "w": panel.width, "h": panel.height}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
            across, tallest = across + panel.width, max(tallest, panel.height)
        down += tallest
    return made


def _panel(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "targets": [_target(panel.kind, place, query) for place, query in enumerate(panel.queries)],
        "fieldConfig": {
            "defaults": _defaults(panel),
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": query.name},
                    "properties": [{"id": "unit", "value": query.unit.value}],
                }
                for query in panel.queries
                if query.unit is not None
            ],
        },
        "options": {},
    }
    if panel.kind is Kind.VALUE:
        made["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "background",
            "graphMode": "none",
        }
    if panel.kind is Kind.TABLE:
        made["options"] = {"sortBy": [{"displayName": panel.queries[0].name, "desc": False}]}
        made["transformations"] = _columns(panel)
    return made


def _target(kind: Kind, place: int, query: Query) -> dict[str, Any]:
    now = kind in (Kind.VALUE, Kind.TABLE)
    return {
        "refId": chr(ord("A") + place),
        "datasource": _SOURCE,
        "expr": query.expression,
        "legendFormat": query.name or "__auto",
        "instant": now,
        "range": not now,
        "format": "table" if kind is Kind.TABLE else "time_series",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": panel.unit.value}
    if panel.kind is Kind.LINES:
        made["min"] = 0
        made["custom"] = {
            "fillOpacity": 8,
            "thresholdsStyle": {"mode": "off" if panel.alarm is None else "line"},
        }
    if panel.words is not None:
        made["mappings"] = [
            {
                "type": "value",
                "options": {
                    str(value): {"text": said, "color": "green" if value == panel.words.good else "red"}
                    for value, said in ((0, panel.words.zero), (1, panel.words.one))
                },
            }
        ]
    elif panel.alarm is not None:
        first, then = ("red", "green") if panel.alarm_below else ("green", "red")
        made["thresholds"] = {
            "mode": "absolute",
            "steps": [{"color": first, "value": None}, {"color": then, "value": panel.alarm}],
        }
    else:
        made["thresholds"] = {"mode": "absolute", "steps": [{"color": "blue", "value": None}]}
    return made


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """One line for each set of the labels `columns`, and a column for each query under its own name."""
    # With one query the column has no letter.
    values = (
        ["Value"] if len(panel.queries) == 1 else [f"Value #{chr(65 + i)}" for i in range(len(panel.queries))]
    )
    names = dict(zip(values, (query.name for query in panel.queries), strict=True))
    keep = [*panel.columns, *values]
    return [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": keep}}},
        {
            "id": "organize",
            "options": {"renameByName": names, "indexByName": {name: i for i, name in enumerate(keep)}},
        },
    ]
