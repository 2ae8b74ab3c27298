"""Who is who in a fleet: keys, certificates, two machines with one name, and many leaves at once."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo import plan
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import judged
from tests.faults.matrix.test_stores import restore_copy
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.configs import HubSettings, LeafSettings, leaf_toml
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.machine import Machine
from tests.harness.certificates import Authority

WHOLE = "nothing acknowledged is lost or doubled"
FLEET = int(os.environ.get("FLEET") or 10)
"""Leaves."""
TLS = """\
[nats.{side}tls]
{lines}
handshake_first = true
"""


def test_the_key_of_a_leaf_is_replaced(world_of: Worlds, case: Case) -> None:
    case.expected = f"its link is cut until it dials with the new key; {WHOLE}"
    with world_of() as w:
        new = tomllib.loads(w.leaf.petiole("enrol", "--new").stdout)["leaf"][0]["key"]
        w.injected.add("the key of edge-1 is replaced", w.link.down)
        done = w.hub.petiole("fleet", "replace", "edge-1", new)
        assert done.returncode == 0, done.stderr
        w.noticed()
        w.load.flows(20)
        w.leaf.end_well()
        w.leaf.start()
        judged(w)


def test_the_certificate_of_the_hub_expires(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"the link is refused until there is another one and it is read; {WHOLE}"
    authority = Authority(tmp_path)
    cert, key = authority.signed("hub", seconds=45)
    paths = f'cert_file = "{cert}"\nkey_file = "{key}"'
    trusted = TLS.format(side="remote.", lines=f'ca_file = "{authority.file}"')
    hub = HubSettings(more=TLS.format(side="extra.leafnodes.", lines=paths))
    with world_of(leaf=LeafSettings(more=trusted), hub=hub, scheme="tls") as w:
        authority.wait_expired("hub")
        w.injected.add("the hub's certificate has expired and the link is cut", w.link.down)
        w.link.proxy.cut()
        w.noticed()
        w.link.proxy.restore()
        w.lasts(15)
        assert w.leaf.status()["link"]["state"] == "down", "the link is refused"
        authority.signed("hub", seconds=3600)
        w.hub.agent.reload()
        w.injected.repaired("another certificate is there, and the hub's agent reloads")
        judged(w)


@contextmanager
def copy_of(w: FaultEnvironment, directory: Path) -> Iterator[Machine]:
    """A machine with the domain and the key of the first leaf, and a machine id of its own."""
    member = plan.member(directory, w.leaf.member.domain)
    directory.mkdir()
    own = directory / "machine-id"
    own.write_text("0123456789abcdef0123456789abcdef\n")
    proxy = w.link.proxy
    one = Machine(
        member, leaf_toml(member, f"nats-leaf://{proxy.host}:{proxy.port}", LeafSettings()), w.injected
    )
    shutil.copytree(w.leaf.member.state / "keys", member.state / "keys")
    inside = f'mount --bind {own} /etc/machine-id && exec "$@"'
    one.prefix = ("unshare", "--mount", "sh", "-c", inside, "sh")
    try:
        one.begin()
        yield one
    finally:
        one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a machine id of its own needs root")
def test_a_second_machine_comes_with_the_domain_of_a_leaf(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"it is refused and both are told; the first one flows on; {WHOLE}"
    with world_of() as w, copy_of(w, tmp_path / "copy") as other:

        def told(since: float) -> str | None:
            states = {state for _, state in other.link_told(since)}
            named = ", ".join(sorted(states))
            return f"it reported that its link is {named}" if "refused" in states else None

        w.injected.add("a second machine announces the domain edge-1", told)
        w.noticed()
        w.load.flows(20)
        other.close()
        w.injected.repaired("it is switched off")
        judged(w)


def test_a_fleet_connects_again_at_once(world_of: Worlds, case: Case) -> None:
    case.expected = f"every link flows again; {WHOLE}"
    case.not_proven.append(
        f"more than {FLEET} leaves (FLEET=); links by the thousand are in measured figures"
    )
    with world_of(leaves=FLEET, devices=1, direct=False, pace=1.0) as w:
        w.link.cut()
        w.lasts(20)
        w.link.restore()
        w.mended(180)
        w.verdict(Terms(seconds=120))


def test_the_hub_of_a_fleet_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = f"every link flows again; {WHOLE}"
    with world_of(leaves=FLEET, devices=1, direct=False, pace=1.0) as w:
        w.hub.agent.kill()
        w.hub.nats.kill()
        w.lasts(5)
        w.hub.start()
        w.mended(180)
        w.verdict(Terms(seconds=120))


def test_the_store_of_the_hub_of_a_fleet_is_restored(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"every leaf begins a new epoch and sends what the hub lacks; {WHOLE}"
    with world_of(leaves=FLEET // 2, devices=1, direct=False, pace=0.5) as w:
        restore_copy(w, w.hub, tmp_path / "copy")
        since = w.injected.made[-1].at
        w.mended(180)
        assert [leaf.member.domain for leaf in w.leaves if not leaf.new_epoch(since)] == []
        w.verdict(Terms(seconds=120))
