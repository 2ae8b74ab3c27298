"""The input `http`; how it behaves and its options are described in `agent.leaf.inputs.http.input`."""

from agent.leaf.inputs.http.input import HttpInput, HttpOptions

__all__ = ["HttpInput", "HttpOptions"]
