"""The benchmarks: one module each, with a `run` that returns its `Result`. They measure, and nothing of the
product may import them."""

from __future__ import annotations

from typing import Final

NAMES: Final[tuple[str, ...]] = (
    "ingest",
    "small",
    "peers",
    "latency",
    "wire",
    "sizing",
    "rules",
    "mapped",
    "plant",
    "footprint",
    "relink",
    "lines",
    "hub-sync",
    "fleet",
    "fleet-10k",
    "dials",
    "audit",
    "spark-read",
    "spark-ingest",
    "spark-scale-backlog",
    "spark-scale-executors",
    "spark-scale-leaves",
    "spark-scale-age",
)
"""In the order in which they run and stand in the page of all benchmarks."""


def module_name(benchmark: str) -> str:
    return "bench." + benchmark.replace("-", "_")
