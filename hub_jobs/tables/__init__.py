"""Opens, reads, writes and commits the hub's Delta tables. An analyst's program needs `read` alone."""

from hub_jobs.tables.scan import read

__all__ = ["read"]
