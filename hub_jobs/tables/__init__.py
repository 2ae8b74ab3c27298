"""The hub's Delta tables: opened and committed to (`delta`, `commits`), written (`parquet`), read (`scan`).

`schemas` has their columns, `places` says where they lie, `stream_history` and `seen` what bronze holds.
"""
