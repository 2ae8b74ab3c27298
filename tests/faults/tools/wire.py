"""A wire between leaf and hub that breaks packet by packet, as a proxy cannot.

The leaf dials an address that stands in a network namespace; there each packet is forwarded, by address
translation, to the hub on this side again. What the namespace drops is lost without a word to either end.
Needs root, `ip`, `nft` and `ss`, and a kernel with address translation. There is no netem in many kernels: so
loss is made by nftables, rate by a token bucket, and delay not at all.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from agent.demo.loopback import free_port

_TOOLS = ("ip", "nft", "ss", "tc")
_RULES = """
table ip wire {{
  chain dialled {{
    type nat hook prerouting priority -100
    ip daddr {near} dnat to {hub}
  }}
  chain answered {{
    type nat hook postrouting priority 100
    masquerade
  }}
  chain passing {{
    type filter hook forward priority 0
  }}
}}
"""


def missing() -> str | None:
    """Why no wire can be made here, None where one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(lacking)} not installed (apt-get install iproute2 nftables)" if lacking else None


class Wire:
    """Leaves dial `host`:`port`; the hub listens on `listen`."""

    def __init__(self) -> None:
        number = random.randrange(2**12)
        self.host = _address(number, 2)
        self.port = free_port()
        self.listen = f"{_address(number, 1)}:{self.port}"
        self._here = _address(number, 1)
        self._space = f"wire{number}"
        self._dropped = 0
        self._ends = (f"wire{number}a", f"wire{number}b")

    def open(self) -> None:
        """Make it. Raises `RuntimeError` with what a command said."""
        here, there = self._ends
        _run("ip", "netns", "add", self._space)
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", self._space)
        _run("ip", "address", "add", f"{self._here}/30", "dev", here)
        # Packets as a line carries them: the kernel would hand over dozens in one, more than a slow line's
        # queue holds.
        _run("ip", "link", "set", here, "gso_max_segs", "1", "up")
        _run("ip", "-n", self._space, "address", "add", f"{self.host}/30", "dev", there)
        _run("ip", "-n", self._space, "link", "set", there, "gso_max_segs", "1", "up")
        redirects = [f"net.ipv4.conf.{one}.send_redirects=0" for one in ("all", there)]
        self._inside("sysctl", "-qw", "net.ipv4.ip_forward=1", *redirects)
        self._inside("nft", "-f", "-", told=_RULES.format(near=self.host, hub=self._here))

    def close(self) -> None:
        """Take it away, however much of it there is."""
        for command in (("ip", "link", "delete", self._ends[0]), ("ip", "netns", "delete", self._space)):
            subprocess.run(command, capture_output=True, check=False)

    def cut(self) -> None:
        """End every connection with a reset on both sides and refuse new ones, as a router does that knows of
        no way."""
        self._only("meta l4proto tcp reject with tcp reset")
        # ss says "Invalid argument" on some kernels though it has done it.
        subprocess.run(("ss", "-K", "src", self._here), capture_output=True, check=False)

    def stall(self) -> None:
        """Lose every packet: both ends see a half-open link."""
        self._only("counter drop")

    def restore(self) -> None:
        """Let everything through again."""
        self._only()

    def lose(self, per_cent: int) -> None:
        """Lose so many of a hundred packets, each way, by chance."""
        self._only(f"numgen random mod 100 < {per_cent} counter drop")

    def swallow(self, bytes_: int) -> None:
        """Lose every packet that is larger and say nothing, as a hole in the path MTU does."""
        self._only(f"ip length > {bytes_} counter drop")

    def dropped(self) -> int:
        """Packets that were lost without a word so far."""
        listed = _run("ip", "netns", "exec", self._space, "nft", "list", "chain", "ip", "wire", "passing")
        return self._dropped + sum(map(int, re.findall(r"packets (\d+)", listed)))

    def throttled(self) -> int:
        """Packets that had to wait so far because of the rate."""
        listed = _run("ip", "netns", "exec", self._space, "tc", "-s", "qdisc", "show", "dev", self._ends[1])
        return sum(map(int, re.findall(r"overlimits (\d+)", listed)))

    def throttle(self, kilobits: int) -> None:
        """Let no more than so many kilobits a second through, each way together."""
        bucket = ("rate", f"{kilobits}kbit", "burst", "16kb", "latency", "1s")
        self._inside("tc", "qdisc", "replace", "dev", self._ends[1], "root", "tbf", *bucket)

    def _only(self, rule: str | None = None) -> None:
        self._dropped = self.dropped()
        lines = "flush chain ip wire passing\n" + (f"add rule ip wire passing {rule}\n" if rule else "")
        self._inside("nft", "-f", "-", told=lines)

    def _inside(self, *command: str, told: str | None = None) -> None:
        _run("ip", "netns", "exec", self._space, *command, told=told)


@contextmanager
def wire() -> Iterator[Wire]:
    """A wire that is taken away with the context."""
    one = Wire()
    try:
        one.open()
        yield one
    finally:
        one.close()


def _address(number: int, end: int) -> str:
    """One of the two addresses of a network of four, in a range that is kept for measuring networks (RFC
    2544)."""
    low = number * 4 + end
    return f"198.18.{low // 256}.{low % 256}"


def _run(*command: str, told: str | None = None) -> str:
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
