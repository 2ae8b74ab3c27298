"""Keys are taken in by a running hub, or refused; one is revoked, and replaced by another: who is let in,
what becomes of the readings, and what `petiole status` says of a leaf whose key the hub does not know."""

from __future__ import annotations

import json
import signal
import subprocess
import tomllib
from pathlib import Path

from msgspec.structs import replace
from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.config import LeafMember
from agent.config.keys import ensure_key
from agent.contract import Exit, announce_subject, leaf_stream
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.processes import program
from agent.server.setup import leaf_users
from agent.server.values import HubConfig, LeafConfig
from tests.harness.agent_process import Agent
from tests.harness.configured import rogue_server
from tests.harness.keyed import Pair, pair
from tests.harness.registrar import HubHand, LeafHand, hub_of
from tests.harness.servers import Hub, Leaf, ServerPair, is_answered
from tests.harness.wait import until, wait_for
from tests.unit.server.test_render import key_of

__all__ = ["pair"]


def test_a_running_hub_takes_a_leaf_in_and_shuts_it_out(pair: Pair) -> None:
    server = pair.hub.server()
    assert "edge-1 is let in" in pair.fleet("add", "-", stdin=pair.key())
    assert pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"] == "never seen"
    assert "edge-1 is shut out" in pair.fleet("revoke", "edge-1")
    assert "is revoked" in pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"]
    assert "edge-1 is shut out" in pair.fleet("forget", "edge-1")
    assert pair.hub.status()["fleet"]["leaves"] == {}
    assert "this key was revoked of edge-1" in pair.fleet("add", "-", stdin=pair.key(), code=Exit.USAGE)
    assert "edge-1 is let in" in pair.fleet("add", "-", stdin=pair.key("--new"))
    assert pair.hub.server() == server, "all that by reloading the hub's server"


def test_changes_that_are_made_at_once_are_each_applied_by_the_running_hub(pair: Pair) -> None:
    domains = [f"edge-{number}" for number in range(2, 6)]
    config = str(pair.hub.member.config)
    commands = [
        subprocess.Popen(
            [program("petiole"), "fleet", "add", domain, key_of(number), "-c", config],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, domain in enumerate(domains)
    ]
    for domain, command in zip(domains, commands, strict=True):
        said, _ = command.communicate(timeout=120)
        assert (command.returncode, said) == (0, f"{domain} is let in\n")
    assert pair.hub.status()["fleet"]["leaves"].keys() == set(domains)


def test_what_cannot_be_taken_in_leaves_the_file_and_the_running_hub_as_they_are(pair: Pair) -> None:
    before = pair.hub.member.config.read_text()
    assert "not a public key" in pair.fleet("add", "edge-1", "UX", code=Exit.USAGE)
    key = tomllib.loads(pair.key())["leaf"][0]["key"]
    assert "petiole itself" in pair.fleet("add", "jobs", key, code=Exit.USAGE)
    seed = (pair.leaf.member.state / "keys" / "link.nk").read_text().strip()
    said = pair.fleet("add", "edge-1", seed, code=Exit.USAGE)
    assert "private key" in said
    assert seed not in said
    assert pair.hub.member.config.read_text() == before
    pair.hub.member.config.write_text(before + "nonsense = 1\n")
    assert pair.hub.process is not None
    server = pair.hub.server()
    pair.hub.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "configuration rejected" in pair.hub.log.read_text(), "the hub has refused it")
    wait_for(lambda: pair.hub.status_of("/readyz") == 200, "the hub goes on")
    assert pair.hub.server() == server
    pair.hub.member.config.write_text(before)
    pair.hub.end(signal.SIGTERM)
    assert "applies it when it starts" in pair.fleet("add", "edge-1", key)


def says(leaf: Agent, *options: str) -> Result:
    """What `petiole status` says of a leaf."""
    return CliRunner().invoke(app, ["status", *options, "-c", str(leaf.member.config)])


def test_a_key_that_the_hub_refuses_is_a_case_for_somebody_and_an_unreachable_hub_is_not(
    tmp_path: Path,
) -> None:
    port = free_port()
    mine, other = (plan.member(tmp_path, domain) for domain in ("edge-1", "edge-2"))
    leaf, known = (Agent(one, plan.leaf_toml(one, port)) for one in (mine, other))
    leaf.petiole("enrol")
    member = plan.member(tmp_path, "hub")
    hub = Agent(member, plan.hub_toml(member, port, [known.petiole("enrol").stdout]))
    try:
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "down", "the link is down")
        ended = says(leaf)
        assert (ended.exit_code, "refuses the key" in ended.stdout) == (5, False), ended.output
        hub.start()
        wait_for(lambda: "refuses the key" in str(leaf.status()["link"]["cause"]), "the cause is found")
        ended = says(leaf)
        assert ended.exit_code == 3, ended.output
        assert "refuses the key of edge-1 (Authorization Violation), let it in" in ended.stdout
        assert "petiole enrol" in json.loads(says(leaf, "--json").stdout)["link"]["cause"]
    finally:
        leaf.close()
        hub.close()


async def configure(hub: Hub, members: list[LeafMember]) -> None:
    """Have the hub's server read the leaves anew, without a restart."""
    config = hub.server.config
    assert isinstance(config, HubConfig)
    hub.server.config = replace(config, leaves=leaf_users(members))
    assert await hub.server.start() == "reloaded"


def refusals(leaf: Leaf) -> int:
    """How often the hub's server did not let this leaf in, by the leaf's own log."""
    return (leaf.directory / "nats-server.log").read_text().count("Authorization Violation")


def kicks(servers: ServerPair) -> int:
    """How many links the hub's server has cut because it was told to, by its own log."""
    return (servers.hub.directory / "nats-server.log").read_text().count("closed: Kicked")


async def test_a_revoked_leaf_is_cut_off_and_comes_back_only_with_another_key_losing_nothing(
    two_leaves: ServerPair, tmp_path: Path
) -> None:
    hub, (leaf, other) = await hub_of(two_leaves), two_leaves.leaves.values()
    old, new = (ensure_key(path) for path in (leaf.config.link_key_file, tmp_path / "new"))
    honest = LeafMember("edge-2", ensure_key(other.config.link_key_file))
    one, two = await LeafHand.make(leaf), await LeafHand.make(other)
    async with hub.registrar(members=[LeafMember("edge-1", old), honest]):
        for hand in (one, two):
            await hand.announce()
            await hub.holds(hand.domain, await hand.store(3))

    members = [LeafMember("edge-1", revoked=[old]), honest]
    await configure(two_leaves.hub, members)
    assert await leaf.linked(), "the server alone leaves links as they are"
    async with hub.registrar(members=members) as registrar:
        await until(lambda: refusals(leaf) > 1, "it was turned away more than once")
        assert not await leaf.linked()
        seq = await one.store(2)
        await other.wait_linked()
        assert kicks(two_leaves)
        await hub.holds("edge-2", await two.store(2))
        assert "revoked" in registrar.status()["leaves"]["edge-1"]["state"]
        await until(lambda: sources(hub, {"edge-2"}), "its source is gone")
        assert (await hub.aggregate()).messages == 8, "what it had sent stays"

    members = [LeafMember("edge-1", new, revoked=[old]), honest]
    await configure(two_leaves.hub, members)
    assert isinstance(leaf.server.config, LeafConfig)
    leaf.server.config = replace(leaf.server.config, link_key_file=tmp_path / "new")
    await leaf.server.start()
    async with hub.registrar(members=members):
        await leaf.wait_linked()
        again = LeafHand(leaf, await leaf.connect("agent"))
        again.epoch = one.epoch
        assert (await again.announce()).agreed is None
        await hub.holds("edge-1", seq)
        assert (await hub.aggregate()).messages == 10
        await leaf.stop()
        async with rogue_server(leaf, tmp_path / "rogue") as owner:
            log = tmp_path / "rogue" / "out"
            await until(lambda: "Authorization Violation" in log.read_text(), "the old key is refused")
            assert not await is_answered(owner, announce_subject("edge-1"))


async def sources(hub: HubHand, domains: set[str]) -> bool:
    """Whether the aggregate has the sources of these leaves and of no other."""
    names = {one["name"] for one in (await hub.aggregate()).config.get("sources") or []}
    return names == {leaf_stream(domain, "normal") for domain in domains}


async def test_a_server_that_still_lets_a_revoked_key_in_has_its_link_cut_whenever_it_comes(
    servers: ServerPair, hub: HubHand
) -> None:
    leaf = servers.leaf
    key = ensure_key(leaf.config.link_key_file)
    async with hub.registrar(members=[LeafMember("edge-1", revoked=[key])]):
        await until(lambda: kicks(servers) > 2, "it is cut when the hub begins and twice more")


async def test_links_stay_when_no_key_has_gone(servers: ServerPair, hub: HubHand) -> None:
    leaf = servers.leaf
    key = ensure_key(leaf.config.link_key_file)
    for _ in range(2):
        async with hub.registrar(members=[LeafMember("edge-1", key)]) as registrar:
            await until(lambda: bool(registrar.status()["links_settled"]), "it looked at the links")
    assert await leaf.linked()
    assert refusals(leaf) == 0
    assert kicks(servers) == 0
