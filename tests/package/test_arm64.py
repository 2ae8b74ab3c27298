"""The package for arm64 in a Debian of that architecture: what agent and server stored is whole after both
were killed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from deploy.deb import package
from deploy.tools import lacking
from tests.package.machine import LEAF_CONFIG, NEEDED_TO_EMULATE, EmulatedMachine

pytestmark = pytest.mark.skipif(
    bool(lacking(NEEDED_TO_EMULATE, root=True)), reason=lacking(NEEDED_TO_EMULATE, root=True)
)

AGENT = "setpriv --reuid petiole --regid petiole --clear-groups petiole"
RUN = f"exec {AGENT} run -c /etc/petiole.toml >>/var/log/petiole.log 2>&1"
POST = """/opt/petiole/bin/python - <<'END'
import json, urllib.request
for first in range({first}, {first} + 100, 10):
    body = "".join(json.dumps(dict(metric="n", value=n)) + "\\n" for n in range(first, first + 10))
    url = "http://127.0.0.1:8080/v1/readings"
    request = urllib.request.Request(url, body.encode(), dict([("Content-Type", "application/x-ndjson")]))
    print(urllib.request.urlopen(request, timeout=60).status)
END"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedMachine]:
    shared = tmp_path_factory.mktemp("packages")
    package(shared, "1.0.0", "arm64", ("-Zgzip", "-z1"))
    one = EmulatedMachine(tmp_path_factory.mktemp("machine"), shared)
    try:
        one.start()
        yield one
    finally:
        one.close()


def started(machine: EmulatedMachine) -> None:
    """An agent that runs there and can store."""
    machine.spawn(RUN)
    ready = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/readyz')"
    machine.wait(f'/opt/petiole/bin/python -c "{ready}"')


def stored(machine: EmulatedMachine) -> list[int]:
    """The values in the leaf's stream."""
    said = machine.run(f"{AGENT} tap -c /etc/petiole.toml --json --last 400 --metric n")
    return [reading["value"] for line in said.splitlines() for reading in json.loads(line)["readings"]]


def test_it_installs_and_stores_and_loses_nothing_when_agent_and_server_are_killed(
    machine: EmulatedMachine,
) -> None:
    machine.run("dpkg -i /shared/petiole_1.0.0_arm64.deb")
    assert machine.run("uname -m; dpkg --print-architecture").split() == ["aarch64", "arm64"]
    (machine.root / "etc" / "petiole.toml").write_text(LEAF_CONFIG)
    started(machine)
    assert machine.run(POST.format(first=0)).split() == ["204"] * 10
    machine.kill("/bin/petiole")
    machine.kill("/bin/nats-server")
    started(machine)
    assert machine.run(POST.format(first=100)).split() == ["204"] * 10
    assert stored(machine) == [*range(200)]
