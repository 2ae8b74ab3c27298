"""Queries and panels that the dashboards share."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.model import Kind, Panel, Query, Unit, Variable, Words

HERE: Final = '{instance="$instance"}'
ALL: Final = '{domain=~"$domain", instance=~"$instance"}'
RATE: Final = "[$__rate_interval]"
DOMAINS: Final = Variable("domain", "Domain", "label_values(petiole_connected, domain)", every=True)


def agents(of: str, every: bool = False) -> Variable:
    """The choice among the agents that have a metric."""
    return Variable("instance", "Agent", f'label_values({of}{{domain=~"$domain"}}, instance)', every)


def rate(metric: str, by: str = "") -> str:
    """A counter of one agent, a second, by labels."""
    rate = f"rate({metric}{HERE}{RATE})"
    return f"sum by ({by}) ({rate})" if by else rate


def counted(metric: str, by: str) -> str:
    """What a counter of one agent rose by in the chosen time. Its series begins with the first event, which
    `increase` does not know of."""
    return (
        f"sum by ({by}) (({metric}{HERE} unless {metric}{HERE} offset $__range)"
        f" or increase({metric}{HERE}[$__range]))"
    )


def flag(title: str, metric: str, words: Words, says: str = "") -> Panel:
    """A small field that says in words whether a gauge of one agent is 1 or 0."""
    return Panel(title, [Query(metric + HERE)], says, Kind.VALUE, width=4, height=4, words=words)


def value(
    title: str,
    expression: str,
    says: str = "",
    *,
    name: str = "",
    unit: Unit = Unit.COUNT,
    alarm: float | None = None,
    alarm_below: bool = False,
) -> Panel:
    """A small field with one number."""
    query = Query(expression, name)
    return Panel(title, [query], says, Kind.VALUE, unit, 4, 4, alarm=alarm, alarm_below=alarm_below)
