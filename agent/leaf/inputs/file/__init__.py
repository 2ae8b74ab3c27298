"""The input `file`; how it behaves and its options are described in `agent.leaf.inputs.file.input`."""

from agent.leaf.inputs.file.input import FileInput, FileOptions

__all__ = ["FileInput", "FileOptions"]
