"""The input `exec`; how it behaves and its options are described in `agent.inputs.exec.input`."""

from agent.inputs.exec.input import ExecInput, ExecOptions

__all__ = ["ExecInput", "ExecOptions"]
