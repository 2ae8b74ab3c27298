"""The input `exec`; how it behaves and its options are described in `agent.leaf.inputs.exec.input`."""

from agent.leaf.inputs.exec.input import ExecInput
from agent.leaf.inputs.exec.options import ExecOptions

__all__ = ["ExecInput", "ExecOptions"]
