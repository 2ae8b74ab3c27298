"""The input `http`; how it behaves and its options are described in `agent.inputs.http.input`."""

from agent.inputs.http.input import HttpInput, HttpOptions

__all__ = ["HttpInput", "HttpOptions"]
