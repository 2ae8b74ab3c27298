"""The demonstration's own parts: it must not call whole what is not, leave nothing running, and give no port
to two."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.demo.load import READINGS, body
from agent.demo.loopback import free_port
from agent.demo.processes import DONE, GROUP, DemoError
from agent.demo.proof import DemoReport, DeviceRows, Domain
from agent.demo.story import fresh

WHOLE = Domain(accepted=10, in_table=10, missing=0, duplicates=0, discarded=0)


def test_a_device_that_is_not_in_the_table_is_missing_whole() -> None:
    assert Domain.compare({"sender-0": 300}, {}, 0).missing == 300


def test_rows_beyond_what_was_acknowledged_hide_no_loss() -> None:
    stored = {"sender-0": DeviceRows(rows=310, distinct=310, acknowledged=295)}
    compared = Domain.compare({"sender-0": 300}, stored, 0)
    assert (compared.missing, compared.duplicates, compared.whole) == (5, 0, False)


def test_a_doubled_row_is_a_duplicate() -> None:
    stored = {"sender-0": DeviceRows(rows=301, distinct=300, acknowledged=300)}
    compared = Domain.compare({"sender-0": 300}, stored, 0)
    assert (compared.missing, compared.duplicates, compared.whole) == (0, 1, False)


def test_one_domain_that_is_not_whole_spoils_the_report() -> None:
    broken = Domain(accepted=10, in_table=9, missing=1, duplicates=0, discarded=0)
    assert DemoReport({"edge-1": WHOLE}, {}, 1.0).whole
    assert not DemoReport({"edge-1": WHOLE, "edge-2": broken}, {}, 1.0).whole


def test_the_report_has_the_promised_keys() -> None:
    report = DemoReport({"edge-1": WHOLE}, {"link_cut": 0.21, "hub_kill": 0.9}, 120.0).as_json()
    assert report["domains"]["edge-1"].keys() == {
        "accepted",
        "in_table",
        "missing",
        "duplicates",
        "discarded",
    }
    assert report["relink_seconds"] == {"link_cut": 0.21, "hub_kill": 0.9}
    assert report["seconds"] == 120.0


def test_a_directory_that_no_demonstration_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(DemoError):
        fresh(tmp_path)
    assert (tmp_path / "letters").exists()


def test_what_an_earlier_demonstration_left_is_removed(tmp_path: Path) -> None:
    fresh(tmp_path / "demo")
    (tmp_path / "demo" / "edge-1").mkdir()
    fresh(tmp_path / "demo")
    assert not (tmp_path / "demo" / "edge-1").exists()


@given(st.integers(0, 3), st.integers(0, 50))
def test_serial_numbers_of_a_sender_run_without_gaps(sender: int, request: int) -> None:
    values = [json.loads(line)["value"] for line in body(sender, request).splitlines()]
    assert values == list(range(request * READINGS + 1, (request + 1) * READINGS + 1))


@pytest.mark.parametrize(("last", "survives"), [("", False), (DONE, True)])
def test_what_was_started_dies_with_the_demonstration_unless_it_ended_well(last: str, survives: bool) -> None:
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "agent.demo.processes", "petiole"],
            input=f"{GROUP} {sleeper.pid}\n{last}\n",
            text=True,
            check=True,
            timeout=30,
        )
        alive = psutil.Process(sleeper.pid).status() != psutil.STATUS_ZOMBIE
        assert alive is survives
    finally:
        sleeper.kill()
        sleeper.wait()


_ASK = (
    "from agent.demo.loopback import free_port; "
    "print(*(free_port() for _ in range(150)), flush=True); input()"
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
