"""Pure work on messages, batches and readings: no server, no Spark session, no table."""
