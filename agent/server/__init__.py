"""Renders, runs and watches the nats-server beside the agent."""
