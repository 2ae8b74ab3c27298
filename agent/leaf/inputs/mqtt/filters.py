"""Compares topic filters by matched topics (MQTT 3.1.1, 4.7). No I/O.

A broker may send a copy per matching subscription (3.3.5; nats-server does:
`findings/nats-mqtt-sends-a-copy-for-each-overlapping-filter.sh`), so subscriptions must not overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Final

_SHARED: Final = re.compile(r"\$share/[^/+#]+/|\$queue/")
"""Prefix of shared subscriptions; `$queue` is EMQX's."""


def without_group(filter_: str) -> str:
    """Return a shared subscription's filter."""
    return _SHARED.sub("", filter_, count=1)


def group_of(filter_: str) -> str:
    """Return a shared subscription's group, "" for others."""
    match = _SHARED.match(filter_)
    return match[0] if match is not None else ""


def matches(filter_: str, topic: str) -> bool:
    """Tell whether a filter matches a topic."""
    return covers(without_group(filter_), topic)


def covers(wide: str, narrow: str) -> bool:
    """Tell whether `wide` matches all topics of `narrow`; both without group."""
    if _differ_by_dollar(wide, narrow):
        return False
    have, want = wide.split("/"), narrow.split("/")
    if have[-1] == "#":
        have.pop()
        if len(want) < len(have):
            return False
        want = want[: len(have)]
    return len(have) == len(want) and all(
        left == right or (left == "+" and right != "#") for left, right in zip(have, want, strict=True)
    )


def overlap(first: str, second: str) -> bool:
    """Tell whether a topic matches both filters, ignoring groups."""
    first, second = without_group(first), without_group(second)
    if _differ_by_dollar(first, second) or _differ_by_dollar(second, first):
        return False
    left_levels, right_levels = first.split("/"), second.split("/")
    for left, right in zip(left_levels, right_levels, strict=False):
        if "#" in (left, right):
            return True
        if "+" not in (left, right) and left != right:
            return False
    shorter, longer = sorted((left_levels, right_levels), key=len)
    return longer[len(shorter) :] in ([], ["#"])


def widest(filters: Sequence[str]) -> list[str]:
    """Return filters not covered by another of the same group."""
    return [
        filter_
        for filter_ in filters
        if not any(
            other != filter_
            and group_of(other) == group_of(filter_)
            and covers(without_group(other), without_group(filter_))
            for other in filters
        )
    ]


def doubled(filters: Sequence[str]) -> list[tuple[str, str]]:
    """Return overlapping pairs of the widest filters."""
    return [pair for pair in combinations(widest(filters), 2) if overlap(*pair)]


def unused(filters: Sequence[str]) -> list[tuple[str, str]]:
    """Return filters covered by an earlier one, after it: the first match defines a topic."""
    return [
        (first, second)
        for first, second in combinations(filters, 2)
        if covers(without_group(first), without_group(second))
    ]


def _differ_by_dollar(wide: str, narrow: str) -> bool:
    """Tell whether only one begins with `$`, which wildcards do not match (4.7.2)."""
    return narrow.startswith("$") and wide[0:1] in ("+", "#")
