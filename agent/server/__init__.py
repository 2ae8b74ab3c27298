"""The nats-server beside the agent: its configuration, its process, its health."""
