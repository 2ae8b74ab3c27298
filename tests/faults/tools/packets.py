"""IPv4 packets with TCP in them: what a line reads of them, and what it answers in an end's name."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10
_TCP: Final = 6
_HEADER: Final = 20
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_SEGMENT: Final = struct.Struct("!HHIIBBHHH")
_WRAP: Final = 2**32


@dataclass(frozen=True, slots=True)
class Segment:
    """The header of a TCP segment; `size` is its payload in bytes, `after` the sequence number behind it."""

    ports: tuple[int, int]
    """From and to."""
    acknowledged: int
    after: int
    flags: int
    size: int

    @classmethod
    def of(cls, packet: bytes) -> Self | None:
        """The segment in a packet; None where there is none."""
        if len(packet) < 2 * _HEADER or packet[0] >> 4 != 4 or packet[9] != _TCP:
            return None
        start = 4 * (packet[0] & 0x0F)
        source, target, sequence, acknowledged, offset, flags, *_ = _SEGMENT.unpack_from(packet, start)
        size = len(packet) - start - 4 * (offset >> 4)
        after = (sequence + size + bool(flags & SYN) + bool(flags & FIN)) % _WRAP
        return cls((source, target), acknowledged, after, flags, size)


def swapped(packet: bytes) -> bytes:
    """The packet with its addresses exchanged. No checksum changes with them."""
    return packet[:12] + packet[16:20] + packet[12:16] + packet[20:]


def reset(segment: Segment, sender: bytes, receiver: bytes) -> bytes:
    """The packet that resets the connection at the end that sent this segment, in the other end's name. The
    addresses are those of the packet: `sender` in the other end's place. An end takes a reset only with the
    very sequence number that it expects (RFC 5961), which its newest segment acknowledges."""
    there, here = segment.ports[1], segment.ports[0]
    tcp = _SEGMENT.pack(there, here, segment.acknowledged, segment.after, 5 << 4, RST | ACK, 0, 0, 0)
    pseudo = sender + receiver + struct.pack("!HH", _TCP, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", _checksum(pseudo + tcp)) + tcp[18:]
    ip = _IP.pack(0x45, 0, _HEADER + len(tcp), 0, 0x4000, 64, _TCP, 0, sender, receiver)
    return ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:] + tcp


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
