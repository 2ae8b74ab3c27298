"""The hub's Delta tables: their schemas, opening and committing, Parquet written by tasks, reading, seen
ranges."""
