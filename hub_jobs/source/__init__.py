"""Reading streams of the hub, without asyncio and without reconnects.

`connection` is a blocking NATS client (`server`: where, and with which key; `protocol`: frames, headers,
errors); `streams` says what a stream is and where its records came from; `ranges` reads a range of
sequences. The other modules are `format("nats")` for Spark.
"""
