"""Provides files, clocks, metrics, logs, sockets and tasks, without knowledge of the product."""
