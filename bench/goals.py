"""Why goals were missed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.kept import Line


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the goal of some rows is missed."""

    benchmark: str
    what: str
    """The rows, as a pattern."""
    why: str


CAUSES: Final = (
    Cause(
        "ingest",
        "HTTP NDJSON, 500 readings a request, 16 connections: wall clock, server syncs every message",
        "an older agent reached 0.934 on a quicker machine. By reckoning, what the sync of a batch takes "
        "counts for more, the less of the rest is the agent's",
    ),
    Cause(
        "latency",
        "1000 readings/s, 10 a request: *",
        "ten readings pass through HTTP, a check and a batch before the publish with which the alternative "
        "begins. Of 2.1 ms 0.6 are the HTTP client of the benchmark, 0.55 the server and its sync, 0.9 the "
        "agent ([step by step](acknowledgement.md#what-an-answer-waits-for))",
    ),
    Cause(
        "footprint",
        "idle, host metrics each second: CPU",
        "the yardstick is a Python that takes the same metrics and does nothing else. The agent also serves "
        "its own metrics, watches clock, server and link, announces itself, and stores a batch each second",
    ),
    Cause(
        "mapped",
        "an uplink of ChirpStack, mapped",
        "both read the same records; Telegraf's parser is compiled, and ours runs closures of Python. A run "
        "on a busy machine, at load 10 to 42, gave 1.2",
    ),
    Cause(
        "relink",
        "link cut *: caught up*",
        "the hub's server asks for the raw source again as soon by itself. What is left of the time is that "
        "server's own wait, for both",
    ),
    Cause(
        "relink",
        "leaf server SIGKILL *: caught up*",
        "the link consumer is gone with the server's memory, so the agent compares with the hub and begins "
        "an epoch, where the raw consumer goes on from disk. It also waited up to a second before it "
        "connected, which it does not since ([step by step](link.md#how-soon-data-flows-again))",
    ),
    Cause(
        "lines",
        "*: relayed Petiole*",
        "a batch of about a second of the line counts once it is whole. After a break the relay sends bytes "
        "again that the hub had received and not acknowledged. Heartbeats and announcements of the servers "
        "take a fixed part of a slow line",
    ),
    Cause(
        "lines",
        "2.4 kB/s*",
        "the leaf's server closes the link as stale three seconds after each dial: the answers to its pings "
        "wait behind everything that both ends send at the start",
    ),
    Cause(
        "lines",
        "100 MB/s*",
        "not examined. By reckoning the line, both servers and both agents share two cores, and the hub's "
        "server syncs; rsync does not",
    ),
    Cause(
        "lines",
        "*",
        "after a break the hub's server has unacknowledged messages repeated, as *crossed* shows. A message "
        "is a batch of about a second of the line, and begins at its start again after each break",
    ),
    Cause(
        "spark-scale-backlog",
        "*: audit, most memory",
        "it grows up to a bound that the smaller backlogs are below: the driver holds the accounts of at "
        "most four million rows of bronze at once, and each core a row group. That it stops there is by "
        "reading; no larger backlog was played",
    ),
    Cause(
        "spark-scale-backlog",
        "*: ingest, a further reading",
        "not measured; by reckoning the stream and what is written of it are 20 GB at the largest backlog, "
        "which a machine of 25 GB does not hold in memory, so that the disk is waited for",
    ),
    Cause(
        "spark-scale-executors",
        "2 executors: *",
        "a run is a whole process, and the start of driver, session and executors is in both. Driver, the "
        "hub's server and two executors share two cores, of which one executor leaves one to the others",
    ),
    Cause(
        "spark-scale-age",
        "*: maintain, *",
        "a lake of a month holds files of 30 days and the others of 90, and maintain reads all that the logs "
        "say of them. No option deletes windows, so that rollup_1m has 120 files after a month and 7,300 "
        "after five years: to read its log adds 26 MB, that of bronze 37 MB beside 29",
    ),
)


def cause(line: Line) -> str:
    for of in CAUSES:
        if of.benchmark == line.benchmark and fnmatchcase(line.what, of.what):
            return of.why
    return "not examined"
