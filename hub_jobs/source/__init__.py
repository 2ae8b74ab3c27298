"""Reading streams of the hub: a blocking NATS client (`wire`), the planning of ranges (`plan`),
`format("nats")`.
"""
