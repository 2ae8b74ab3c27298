"""The job `ingest`: from the hub's aggregates into the table `bronze`."""
