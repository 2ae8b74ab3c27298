"""The hub's Delta tables: opened and committed to (`delta`, `commits`), written (`parquet`), read (`scan`,
`parquet_reading`).

`schemas` has their columns, `places` says where they lie, `stream_history` and `seen` what bronze holds;
`spaces`, `ranges` and `grouping` reckon with messages and their numbers. An analyst's program needs `read`
alone.
"""

from hub_jobs.tables.scan import read

__all__ = ["read"]
