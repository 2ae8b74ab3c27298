"""Ports handed out: nobody else may take one before its server has begun."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from agent.demo.ports import free_port

_ASK = (
    "from agent.demo.ports import free_port; print(*(free_port() for _ in range(150)), flush=True); input()"
)


def test_processes_that_live_at_one_time_are_given_no_port_twice() -> None:
    mine = {free_port() for _ in range(150)}
    with Asker() as one, Asker() as other:
        assert len({*mine, *one.ports, *other.ports}) == 450


def test_a_port_is_below_those_of_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= free_port() < first


def test_a_port_in_use_is_left_out() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        whole_block = {free_port() for _ in range(250)}
    assert len(whole_block) > 150
    assert taken not in whole_block


class Asker:
    """A process that asked for ports and lives on."""

    def __enter__(self) -> Asker:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.ports = {int(port) for port in self._process.stdout.readline().split()}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("\n", timeout=20)
