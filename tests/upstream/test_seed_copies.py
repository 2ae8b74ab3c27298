"""NATS' document on JetStream and leaf nodes, step by step: streams copied from one domain to the other by
mirrors and sources, and read while the link is down. `docs/client.md` walks through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent.contract import api_prefix
from agent.jetstream import JetStream
from tests.harness.declared import End
from tests.harness.seed_servers import SIDES, Seed, open_seed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seed]:
    """Hub and leaf as the document links them."""
    async with open_seed(tmp_path_factory.mktemp("seed")) as one:
        yield one


def other(side: str) -> str:
    """The other side."""
    return "leaf" if side == "hub" else "hub"


def origin(name: str, domain: str, **more: Any) -> dict[str, Any]:
    """A stream in another domain, as a mirror or a source names it."""
    return {"name": name, "external": {"api": api_prefix(domain), "deliver": ""}, **more}


async def end(seed: Seed, side: str) -> End:
    """The JetStream of one side, for a client there."""
    return End(await seed.connect(side))


async def replication(js: JetStream, *streams: str) -> dict[str, dict[str, Any]]:
    """What `nats stream report` says of the mirrors and sources of these streams."""
    found = {}
    for name in streams:
        info = await js.api(f"STREAM.INFO.{name}")
        rows = [("Mirror", info["mirror"])] if "mirror" in info else []
        rows += [("Source", row) for row in info.get("sources") or []]
        found[name] = {
            "kind": rows[0][0],
            "api": rows[0][1]["external"]["api"],
            "stream": rows[0][1]["name"],
            "lag": rows[0][1]["lag"],
            "active": rows[0][1]["active"] >= 0,
            "error": rows[0][1].get("error"),
        }
    return found


@pytest.mark.parametrize("to", SIDES)
async def test_a_stream_is_mirrored_and_gathered_from_the_other_domain(seed: Seed, to: str) -> None:
    origin_name, copies = f"test-{to}", (f"backup-{to}", f"aggregate-{to}")
    far, near = await end(seed, other(to)), await end(seed, to)
    await far.make(origin_name, f"{origin_name}.>")
    await far.store(f"{origin_name}.a", "hello world")
    js = await seed.js(other(to), to)  # made through the other domain's prefix, as the document does
    await js.ensure_stream({"name": copies[0], "mirror": origin(origin_name, other(to))})
    await js.ensure_stream({"name": copies[1], "sources": [origin(origin_name, other(to))]})
    for name in copies:
        await near.holds(name, ["hello world"])
    flowing = {"api": api_prefix(other(to)), "stream": origin_name, "lag": 0, "active": True, "error": None}
    assert await replication(js, *copies) == {
        copies[0]: {"kind": "Mirror", **flowing},
        copies[1]: {"kind": "Source", **flowing},
    }
    gathered = await js.get_message(copies[1], seq=1)
    assert gathered is not None
    assert gathered.headers["Nats-Stream-Source"].startswith(f"{origin_name}:")


async def test_streams_of_many_domains_are_gathered_in_one(seed: Seed) -> None:
    for side in SIDES:
        one = await end(seed, side)
        await one.make("part", f"part.{side}")
        await one.store(f"part.{side}", f"of {side}")
    hub = await end(seed, "hub")
    sources = [{"name": "part"}, origin("part", "leaf")]
    await hub.js.ensure_stream({"name": "whole", "sources": sources})
    await hub.holds("whole", ["of hub", "of leaf"])


@pytest.mark.parametrize("to", SIDES)
async def test_what_was_copied_is_read_while_the_link_is_down_and_the_rest_comes_after_it(
    seed: Seed, to: str
) -> None:
    """A leaf reads its copy of the hub's commands, a hub its copy of what a leaf has measured."""
    far, near = await end(seed, other(to)), await end(seed, to)
    await far.make(f"orders-{to}", f"orders.{to}")
    await far.store(f"orders.{to}", "first", "second")
    await near.js.ensure_stream({"name": f"copy-{to}", "mirror": origin(f"orders-{to}", other(to))})
    await near.holds(f"copy-{to}", ["first", "second"])
    seed.proxy.cut()
    await seed.linked(False)
    assert await near.texts(f"copy-{to}") == ["first", "second"]
    consumer = await near.nc.jetstream().pull_subscribe("", stream=f"copy-{to}")
    assert [one.data for one in await consumer.fetch(2)] == [b"first", b"second"]
    await far.store(f"orders.{to}", "third")
    seed.proxy.restore()
    await seed.linked()
    await near.holds(f"copy-{to}", ["first", "second", "third"])
    assert await near.texts(f"copy-{to}") == ["first", "second", "third"]


async def test_a_mirror_takes_nothing_by_itself_and_keeps_the_sequences_of_its_origin(seed: Seed) -> None:
    far, near = await end(seed, "leaf"), await end(seed, "hub")
    await far.make("kept", "kept")
    await far.store("kept", "1", "2", "3", "4")
    await far.js.purge("kept", 2)
    await near.js.ensure_stream({"name": "kept-copy", "mirror": origin("kept", "leaf")})
    await near.holds("kept-copy", ["3", "4"])
    info = await near.js.stream_info("kept-copy")
    assert (info.first, info.last) == (3, 4)
    await near.store("kept", "5")  # for the origin: a mirror listens to no subject
    await near.holds("kept-copy", ["3", "4", "5"])
    assert (await far.js.stream_info("kept")).last == 5
