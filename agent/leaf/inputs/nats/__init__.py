"""The input `nats`; how it behaves and its options are described in `agent.leaf.inputs.nats.input`."""

from agent.leaf.inputs.nats.input import NatsInput
from agent.leaf.inputs.nats.options import NatsOptions

__all__ = ["NatsInput", "NatsOptions"]
