"""Copies the hub's aggregates to the table `bronze`: the job `ingest`."""
