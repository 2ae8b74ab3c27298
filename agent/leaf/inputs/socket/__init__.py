"""The input `socket`; how it behaves and its options are described in `agent.leaf.inputs.socket.input`."""

from agent.leaf.inputs.socket.input import SocketInput
from agent.leaf.inputs.socket.options import SocketOptions

__all__ = ["SocketInput", "SocketOptions"]
