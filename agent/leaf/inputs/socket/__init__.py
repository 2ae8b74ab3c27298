"""The input `socket`; how it behaves and its options are described in `agent.leaf.inputs.socket.input`."""

from agent.leaf.inputs.socket.input import SocketInput, SocketOptions

__all__ = ["SocketInput", "SocketOptions"]
