"""The input `socket`; how it behaves and its options are described in `agent.inputs.socket.input`."""

from agent.inputs.socket.input import SocketInput, SocketOptions

__all__ = ["SocketInput", "SocketOptions"]
