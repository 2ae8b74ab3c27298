"""Each known issue of JetStream on leaf nodes, made with servers of somebody's own whose users may do
everything: `petiole check` finds it, and finds it gone once its remedy is applied."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.aio.client import Client

from agent.config import Config, Nats
from agent.contract import Exit
from agent.demo.ports import free_port
from agent.doctor.finding import Finding, outcome
from agent.doctor.link import GROUP as LINK
from agent.server.binary import find_binary
from agent.server.child import reap, spawn
from agent.server.keys import ensure_key
from agent.server.probe import Watched, greeting
from tests.doctor import bad, check, of
from tests.servers import ask, until

ACCOUNTS = """
accounts {{
  SYS {{ users: [ {{ nkey: {system} }}, {{ user: admin, password: admin }} ] }}
  PETIOLE {{ jetstream: enabled, users: [ {{ nkey: {account} }}, {{ user: leaf, password: leaf }} ] }}
}}
system_account: SYS
"""
LINKED = '{{ urls: ["nats-leaf://leaf:leaf@127.0.0.1:{port}"], account: PETIOLE{more} }}'
SYSTEM_LINKED = '{{ urls: ["nats-leaf://admin:admin@127.0.0.1:{port}"], account: SYS }}'


@dataclass
class Pair:
    """A hub and a leaf by hand; `start_…` begins them, again after `end`, with the same stores."""

    directory: Path
    hub_port: int
    leaf_port: int
    dial_port: int
    _running: dict[str, Watched]

    @classmethod
    def make(cls, directory: Path) -> Pair:
        return cls(directory, free_port(), free_port(), free_port(), {})

    @property
    def config(self) -> Config:
        """The configuration of the leaf's agent."""
        keys = self.directory / "keys"
        return Config(
            domain="edge-1",
            state_dir=keys,
            nats=Nats(
                server="external",
                listen=f"127.0.0.1:{self.leaf_port}",
                seed_file=keys / "account",
                system_seed_file=keys / "system",
                hub_urls=[f"nats-leaf://leaf:leaf@127.0.0.1:{self.dial_port}"],
            ),
        )

    async def start_hub(self, domain: str = "hub", jetstream: bool = True) -> None:
        leafnodes = f'listen: "127.0.0.1:{self.dial_port}", no_advertise: true'
        await self._start("hub", self.hub_port, domain, leafnodes, jetstream)

    async def start_leaf(
        self, domain: str = "edge-1", more: str = "", system: bool = False, name: str = "leaf"
    ) -> None:
        remotes = [LINKED.format(port=self.dial_port, more=more)]
        remotes += [SYSTEM_LINKED.format(port=self.dial_port)] if system else []
        port = self.leaf_port if name == "leaf" else free_port()
        await self._start(name, port, domain, f"remotes: [ {', '.join(remotes)} ]")
        for account in ("PETIOLE", "SYS") if system else ("PETIOLE",):
            await self._linked(name, account)

    async def end(self, name: str) -> None:
        process = self._running.pop(name)
        process.signal(9)  # type: ignore[arg-type]
        await process.ended.wait()
        reap(process.pid)

    async def close(self) -> None:
        for name in list(self._running):
            await self.end(name)

    async def make_stream(self, port: int, name: str, subject: str) -> None:
        client = await self._client(port)
        answer = await ask(client, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subject]})
        assert "error" not in answer
        await client.close()

    async def messages(self, port: int, name: str) -> int:
        client = await self._client(port)
        answer = await ask(client, f"$JS.API.STREAM.INFO.{name}")
        await client.close()
        return int(answer["state"]["messages"])

    async def _client(self, port: int) -> Client:
        return await nats.connect(
            f"nats://127.0.0.1:{port}", nkeys_seed=str(self.directory / "keys" / "account")
        )

    async def _linked(self, name: str, account: str) -> None:
        def reached() -> bool:
            text = (self.directory / name / "out").read_text()
            return f"Leafnode connection created for account: {account}" in text

        await until(reached, f"{name} is linked")

    async def _start(self, name: str, port: int, domain: str, leafnodes: str, jetstream: bool = True) -> None:
        place = self.directory / name
        place.mkdir(exist_ok=True)
        keys = {one: ensure_key(self.directory / "keys" / one) for one in ("account", "system")}
        store = f'jetstream {{ store_dir: "{place}", {f"domain: {domain}" if domain else ""} }}'
        accounts = ACCOUNTS.format(**keys)
        if not jetstream:
            store, accounts = "", accounts.replace("jetstream: enabled, ", "")
        text = f'server_name: {name}-open\nlisten: "127.0.0.1:{port}"\n{store}\nleafnodes {{ {leafnodes} }}'
        (place / "server.conf").write_text(text + accounts)
        (place / "out").unlink(missing_ok=True)
        command = [str(find_binary()), "-c", str(place / "server.conf")]
        self._running[name] = Watched(spawn(command, place, place / "out"))

        async def answers() -> bool:
            return await greeting(("127.0.0.1", port)) is not None

        await until(answers, f"{name} answers")


@contextlib.asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    one = Pair.make(directory)
    try:
        yield one
    finally:
        await one.close()


def domains(found: list[Finding]) -> list[str]:
    """What is bad about domains and streams. Servers made by hand have no registrar, and sync when they
    like."""
    return bad(
        [one for one in found if one.group in ("domain", "streams", LINK) and "registrar" not in one.sentence]
    )


async def test_jetstream_that_is_extended_by_accident_is_found_until_both_sides_have_a_domain(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub(domain="")
        await one.start_leaf(domain="", system=True)
        # The accident itself: what is made at the leaf appears at the hub.
        await one.make_stream(one.leaf_port, "T", "t.>")
        assert await one.messages(one.hub_port, "T") == 0
        found = await check(one.config)
        assert "domain: edge-1" in of(found, "extends the hub's JetStream, for neither has a domain").remedy
        assert "domain: hub" in of(found, "the hub's JetStream has no domain").remedy
        assert outcome(found) is Exit.FAILED
        await one.close()
        await one.start_hub()
        await one.start_leaf(system=True)
        found = await check(one.config)
        assert [words for words in domains(found) if "domain" in words and "stored by" not in words] == []


async def test_a_leaf_without_a_domain_or_a_hub_without_one_or_without_jetstream_is_found(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        await one.start_leaf(domain="")
        assert domains(await check(one.config)) == ["the local server's JetStream has no domain"]
        await one.end("leaf")
        await one.start_leaf()
        assert domains(await check(one.config)) == []
        await one.end("hub")
        await one.start_hub(domain="")
        (words,) = domains(await check(one.config))
        assert words == "the hub's JetStream has no domain, so no leaf can ask for it"
        await one.end("hub")
        await one.start_hub(jetstream=False)
        assert "the hub's server has no JetStream" in domains(await check(one.config))
        await one.end("hub")
        await one.start_hub()
        assert domains(await check(one.config)) == []


async def test_a_subject_that_both_domains_store_is_found_until_it_is_kept_off_the_link(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        await one.start_leaf()
        for port in (one.hub_port, one.leaf_port):
            await one.make_stream(port, "test", "test")
        await one.make_stream(one.hub_port, "HUB", "tel.>")
        await one.make_stream(one.leaf_port, "LEAF", "tel.edge-1.>")

        async def seen() -> list[str]:
            return [words for words in domains(await check(one.config)) if "stored by" in words]

        await until(lambda: _has(seen, 2), "the interest of the hub's streams has come over the link")
        assert sorted(await seen()) == [
            "tel.edge-1.>, which LEAF stores here, is stored by HUB in domain hub too",
            "test, which test stores here, is stored by test in domain hub too",
        ]
        for port, name in ((one.hub_port, "test"), (one.hub_port, "HUB"), (one.leaf_port, "LEAF")):
            assert await one.messages(port, name) == 0, "looking stores nothing"
        await one.end("leaf")
        await one.start_leaf(more=', deny_exports: ["test", "tel.edge-1.>"]')
        assert await seen() == []


async def _has(seen: object, count: int) -> bool:
    return len(await seen()) == count  # type: ignore[operator]


async def test_two_leaves_of_one_domain_are_found_and_named(tmp_path: Path) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        await one.start_leaf()
        await one.start_leaf(name="other")
        found = await check(one.config)
        words = "2 servers answer for domain edge-1: leaf-open, other-open"
        assert of(found, words).exit is Exit.CONFLICT
        assert outcome(found) is Exit.CONFLICT
        await one.end("other")
        await one.start_leaf(name="other", domain="edge-2")
        assert domains(await check(one.config)) == []
