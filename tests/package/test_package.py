"""The Debian package in a clean Debian under a real systemd: installed, run with what its unit forbids,
upgraded, removed and purged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.deb import native, package
from deploy.tools import lacking
from tests.package.machine import NEEDED, Machine

pytestmark = pytest.mark.skipif(bool(lacking(NEEDED, root=True)), reason=lacking(NEEDED, root=True))

CONFIG = """\
role = "leaf"
domain = "edge-1"
state_dir = "/var/lib/petiole"

[nats]
hub_urls = ["nats-leaf://127.0.0.1:7422"]
link_seed_file = "$CREDENTIALS_DIRECTORY/link.nk"
max_file_store = "2GiB"

[[input]]
type = "host"
interval = "1s"

[[input]]
type = "file"
path = "/var/log/plant.ndjson"

[[input]]
type = "exec"
command = ["/bin/echo", '{"metric": "from_exec", "value": 1}']
interval = "1s"

[[input]]
type = "socket"
listen = "unix:///run/petiole/lines.sock"
"""
SERVERS = (
    "for p in /proc/[0-9]*; do"
    " tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q ^/opt/petiole/bin/nats-server && echo ${p#/proc/};"
    " done; true"
)
PYTHON = "/opt/petiole/bin/python -c"
AS_AGENT = "runuser -u petiole --"
KERNEL_CLOCK = "import ctypes; print(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256)))"
SEND = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/petiole/lines.sock');"
    """ s.sendall(b'{\\"metric\\": \\"from_socket\\", \\"value\\": 1}\\n')"""
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package and its next version."""
    directory = tmp_path_factory.mktemp("packages")
    first = package(directory, "1.0.0", native(), ("-Zgzip", "-z1"))
    unpacked = directory / "next"
    subprocess.run(["dpkg-deb", "-R", first, unpacked], check=True)
    control = unpacked / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("Version: 1.0.0", "Version: 1.0.1"))
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", unpacked, directory / "new.deb"], check=True)
    first.rename(directory / "old.deb")
    return directory


def test_the_same_tree_gives_the_same_package(packages: Path, tmp_path: Path) -> None:
    again = package(tmp_path, "1.0.0", native(), ("-Zgzip", "-z1"))
    assert again.read_bytes() == (packages / "old.deb").read_bytes()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Iterator[Machine]:
    one = Machine(tmp_path_factory.mktemp("machine"), packages)
    try:
        one.start()
        yield one
    finally:
        one.close()


def main_pid(machine: Machine) -> str:
    return machine.run("systemctl show petiole -p MainPID --value")


def server_pid(machine: Machine) -> str:
    """The embedded server's process."""
    return machine.run(SERVERS)


def test_a_package_is_installed_and_the_agent_runs_with_what_its_unit_forbids(machine: Machine) -> None:
    machine.run("dpkg -i /shared/old.deb")
    assert not machine.holds("systemctl is-enabled petiole")
    assert not machine.holds("systemctl start petiole")  # nothing is configured
    assert "domain" in machine.run("journalctl -u petiole -o cat")

    (machine.root / "etc" / "petiole.toml").write_text(CONFIG)
    (machine.root / "var" / "log" / "plant.ndjson").write_text('{"metric": "from_file", "value": 1}\n')
    own = machine.root / "etc" / "systemd" / "system" / "petiole.service.d"
    own.mkdir()
    (own / "own.conf").write_text("[Service]\nLoadCredential=link.nk:/etc/petiole/link.nk\n")
    make = "from pathlib import Path; from agent.config.keys import make_key as make;"
    make += " make(Path('/etc/petiole/link.nk'))"
    machine.run(f'{PYTHON} "{make}"')
    machine.run("systemctl daemon-reload; systemctl enable --now petiole")
    assert "the link to the hub is down" in machine.run("systemctl show petiole -p StatusText --value")

    machine.run(f'{PYTHON} "{SEND}"')
    tap = f"{AS_AGENT} petiole tap -c /etc/petiole.toml --last 400"
    for metric in ("from_file", "from_exec", "from_socket", "cpu_percent", "memory_available_bytes"):
        machine.wait(f"{tap} | grep -q {metric}")


def test_under_the_unit_the_kernel_tells_whether_the_clock_is_synchronised(machine: Machine) -> None:
    unit = (machine.root / "usr/lib/systemd/system/petiole.service").read_text().split("[Service]")[1]
    limits = [
        line for line in unit.splitlines() if line.split("=")[0].startswith(("Protect", "Restrict", "Sys"))
    ]
    limits += ["CapabilityBoundingSet=", "User=petiole", "Type=oneshot"]
    program = f"ExecStart={PYTHON} '{KERNEL_CLOCK}'"
    (machine.root / "etc/systemd/system/clock.service").write_text(
        "\n".join(["[Service]", *limits, program, ""])
    )
    machine.run("systemctl daemon-reload; systemctl start clock")
    outside = machine.run(f"{AS_AGENT} {PYTHON} '{KERNEL_CLOCK}'")
    assert outside != "-1"
    machine.wait(f"journalctl -u clock -o cat | grep -qx {outside}")


def test_a_reload_keeps_the_process_and_a_restart_keeps_the_server(machine: Machine) -> None:
    agent, server = main_pid(machine), server_pid(machine)
    machine.run('sed -i \'s/interval = "1s"/interval = "2s"/\' /etc/petiole.toml; systemctl reload petiole')
    machine.wait("journalctl -u petiole -o cat | grep -q 'input restarted: exec, host'")
    assert main_pid(machine) == agent
    machine.run("systemctl restart petiole")
    assert main_pid(machine) != agent
    assert server_pid(machine) == server != ""


def test_an_agent_that_hangs_is_ended_and_started_again(machine: Machine) -> None:
    agent = main_pid(machine)
    machine.run(f"kill -STOP {agent}")
    machine.wait("systemctl show petiole -p NRestarts --value | grep -qx 1")
    machine.wait("systemctl is-active petiole")
    assert "Watchdog timeout" in machine.run("journalctl -u petiole -o cat")
    assert main_pid(machine) != agent


def test_the_hub_runs_under_its_unit_and_takes_its_server_over(machine: Machine) -> None:
    machine.run("systemctl stop petiole; systemctl kill petiole")
    machine.wait(f'test -z "$({SERVERS})"')
    file = machine.root / "etc" / "petiole.toml"
    leaf = file.read_text()
    file.write_text('role = "hub"\ndomain = "hub"\nstate_dir = "/var/lib/petiole/hub"\n')
    machine.run("systemctl start petiole-hub")
    assert machine.run("systemctl show petiole-hub -p StatusText --value") == "the registrar answers"
    server = server_pid(machine)
    machine.run("systemctl restart petiole-hub")
    assert server_pid(machine) == server != ""
    machine.run("systemctl stop petiole-hub; systemctl kill petiole-hub")
    machine.wait(f'test -z "$({SERVERS})"')
    file.write_text(leaf)
    machine.run("systemctl start petiole")


def test_an_upgrade_keeps_configuration_and_data(machine: Machine) -> None:
    agent, key = main_pid(machine), machine.run("sha256sum /var/lib/petiole/keys/agent.nk")
    tap = f"{AS_AGENT} petiole tap -c /etc/petiole.toml --last 1000"
    machine.run("dpkg -i /shared/new.deb")
    assert (machine.root / "etc" / "petiole.toml").read_text() == CONFIG.replace('"1s"', '"2s"')
    assert main_pid(machine) != agent
    machine.wait("systemctl is-active petiole")
    assert machine.run("sha256sum /var/lib/petiole/keys/agent.nk") == key
    assert machine.holds(f"{tap} | grep -q from_file")


def test_a_removal_ends_all_and_keeps_data_and_a_purge_takes_them(machine: Machine) -> None:
    machine.run("dpkg -r petiole")
    machine.wait(f'test -z "$({SERVERS})"')
    assert not machine.holds("test -e /opt/petiole")
    assert machine.holds("test -f /etc/petiole.toml && test -d /var/lib/petiole/nats/store")
    machine.run("dpkg -P petiole")
    assert not machine.holds("test -e /etc/petiole.toml || test -e /var/lib/petiole")
    assert machine.holds("test -f /etc/petiole/link.nk")  # not the package's
