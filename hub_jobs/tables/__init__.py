"""The hub's Delta tables: opened and committed to (`delta`, `commits`), written (`parquet`), read (`scan`).

`schemas` has their columns and `column_types` the types of these, `places` says where they lie,
`stream_history` and `seen` what bronze holds. An analyst's program needs `read` alone.
"""

from hub_jobs.tables.scan import read

__all__ = ["read"]
