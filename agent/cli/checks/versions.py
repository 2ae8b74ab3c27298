"""Versions of nats-server, and their faults that matter to a leaf and its hub. Pure.

Each fault names its source: an issue or pull request of nats-io/nats-server, or `measured` by this project.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from agent.base.nats_server_version import MINIMUM
from agent.cli.checks.finding import Finding, failure, ok, warning

GROUP: Final = "server"
Version = tuple[int, int, int]
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_NEXT: Final = (2, 16, 0)
_ADVICE: Final = f"install nats-server {'.'.join(map(str, MINIMUM))} and restart it"


class KnownDefect(NamedTuple):
    """A fault of the versions from `first` on and before `fixed`; the gravest comes first in the table."""

    first: Version
    fixed: Version
    what: str
    source: str


FAULTS: Final = (
    KnownDefect((0, 0, 0), (2, 14, 0), "it has no durable sources, over which the link runs", "#7613"),
    KnownDefect(
        (2, 14, 0),
        (2, 15, 0),
        "the hub skips without a word what a leaf sends whose stream was made again",
        "#8346",
    ),
    KnownDefect(
        (2, 14, 0), (2, 14, 1), "every leaf that connects restarts the sources of all others", "#8111"
    ),
    KnownDefect(
        (2, 15, 0), (2, 15, 1), "a source that waits for flow control stops without an error", "#8633"
    ),
)
"""Ranges of versions that this program refuses to work with, each with the fault that is worst there."""


def parse(text: str) -> Version | None:
    """The version in a text such as `2.15.1`."""
    match = _VERSION.search(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def judge(server: str, text: str) -> Finding:
    """Judge the version of a server."""
    version = parse(text)
    if version is None:
        return failure(GROUP, f"{server} tells no version ({text:.40})", _ADVICE)
    if version < MINIMUM:
        fault = next(defect for defect in FAULTS if defect.first <= version < defect.fixed)
        return failure(GROUP, f"{server} is nats-server {text}: {fault.what} ({fault.source})", _ADVICE)
    if version >= _NEXT:
        return warning(
            GROUP,
            f"{server} is nats-server {text}, newer than this release knows: from 2.16 on flow control uses "
            "other subjects, which no permission here lets pass",
            _ADVICE,
        )
    return ok(GROUP, f"{server} is nats-server {text}")
