"""The input `host`; how it behaves and its options are described in `agent.leaf.inputs.host.input`."""

from agent.leaf.inputs.host.input import HostInput, HostOptions

__all__ = ["HostInput", "HostOptions"]
