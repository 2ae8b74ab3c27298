"""The input `nats`; how it behaves and its options are described in `agent.inputs.nats.input`."""

from agent.inputs.nats.input import LocalServer, NatsInput, NatsOptions

__all__ = ["LocalServer", "NatsInput", "NatsOptions"]
