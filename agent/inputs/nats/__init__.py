"""The input `nats`; how it behaves and its options are described in `agent.inputs.nats.input`."""

from agent.inputs.nats.input import NatsInput, NatsOptions

__all__ = ["NatsInput", "NatsOptions"]
