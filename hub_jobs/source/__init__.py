"""Reads hub streams without asyncio and reconnects, and provides `format("nats")` for Spark.

`connection` is a blocking NATS client with `server` (address and key) and `protocol` (frames, headers,
errors); `streams` describes streams and sources; `ranges` reads a sequence range.
"""
