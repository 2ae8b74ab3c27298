"""Aggregates `readings` by minute, hour and day: the job `rollup`."""
