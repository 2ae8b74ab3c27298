"""The hub's Delta tables: their schemas, opening and committing, Parquet written by tasks, reading, ranges
seen."""

from hub_jobs.tables.delta import ConflictError, Table, TableError, ensure_table, open_table
from hub_jobs.tables.scan import Condition, frame, read

__all__ = ["Condition", "ConflictError", "Table", "TableError", "ensure_table", "frame", "open_table", "read"]
