"""NATS' document on JetStream and leaf nodes, step by step: two servers, two domains, and what goes between
them without a mirror or a source. `docs/client.md` walks through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent.jetstream import ApiError
from tests.harness.seed_servers import ACCOUNTS, SIDES, Seed, answers, configured, open_seed, remote
from tests.harness.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSZ = "$SYS.REQ.SERVER.PING.JSZ"
MORE = ACCOUNTS.replace(
    "accounts {",
    """accounts {
    OTHER: { users: [{user: other, password: other}], jetstream: enabled }
    ISLAND: { users: [{user: island, password: island}], jetstream: enabled }""",
)
"""The document's accounts, one more that is linked, and one that is isolated."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seed]:
    """Hub and leaf, linked in all accounts but ISLAND."""
    directory = tmp_path_factory.mktemp("seed")
    async with open_seed(directory, accounts=MORE, together=("SYS", "ACC", "OTHER")) as one:
        yield one


async def counts(seed: Seed, stream: str) -> dict[str, int]:
    """How many messages the stream of this name has in each domain."""
    return {side: (await (await seed.js("hub", side)).stream_info(stream)).messages for side in SIDES}


@pytest.mark.parametrize("side", SIDES)
async def test_each_server_answers_for_its_own_domain_and_reaches_the_other_by_its_prefix(
    seed: Seed, side: str
) -> None:
    assert (await (await seed.js(side)).api("INFO"))["domain"] == side
    for domain in SIDES:
        assert (await (await seed.js(side, domain)).api("INFO"))["domain"] == domain
    client = await seed.connect(side)
    assert len(await answers(client, "$JS.API.INFO")) == 1


@pytest.mark.parametrize("side", SIDES)
async def test_linked_system_accounts_report_both_servers_from_either_side(seed: Seed, side: str) -> None:
    rows: list[dict[str, Any]] = []

    async def both() -> bool:
        rows[:] = await answers(await seed.connect(side, "admin"), JSZ)
        found = {row["server"]["name"]: row["server"]["domain"] for row in rows}
        return found == {"hub-server": "hub", "leaf-server": "leaf"}

    await until(both, "both servers answer")
    for row in rows:
        assert {"streams", "consumers", "messages", "bytes", "memory", "storage", "api"} <= set(row["data"])
    assert "JetStream not extended, domains differ" in seed.servers[side].log


async def test_streams_of_one_name_live_in_both_domains_and_a_message_for_both_is_stored_twice(
    seed: Seed,
) -> None:
    config = {"name": "test", "subjects": ["test"], "storage": "file", "duplicate_window": 120 * 10**9}
    for domain in SIDES:
        await (await seed.js("hub", domain)).ensure_stream(config)
    await (await seed.js("hub")).publish("test", b"hello world")

    async def twice() -> bool:
        return await counts(seed, "test") == {"hub": 1, "leaf": 1}

    await until(twice, "each of the two streams reports one message")
    for domain in SIDES:
        rows = [row async for row in (await seed.js("hub", domain)).streams("test")]
        assert [(row.name, row.messages) for row in rows] == [("test", 1)]


async def test_only_the_near_stream_stores_a_message_while_the_link_is_down(seed: Seed) -> None:
    config = {"name": "apart", "subjects": ["apart"]}
    for domain in SIDES:
        await (await seed.js("hub", domain)).ensure_stream(config)
    seed.proxy.cut()
    await seed.linked(False)
    for side in SIDES:
        await (await seed.js(side)).publish("apart", side.encode())
    seed.proxy.restore()
    await seed.linked()
    for domain in SIDES:
        js = await seed.js("hub", domain)
        found = await js.get_message("apart", seq=1)
        assert found is not None
        assert (found.data, (await js.stream_info("apart")).messages) == (domain.encode(), 1)


@pytest.mark.parametrize(
    ("subjects", "users"),
    [
        ({"hub": "own.hub", "leaf": "own.leaf"}, {"hub": "acc", "leaf": "acc"}),
        ({"hub": "same", "leaf": "same"}, {"hub": "acc", "leaf": "other"}),
        ({"hub": "same", "leaf": "same"}, {"hub": "island", "leaf": "island"}),
    ],
    ids=["other subjects", "other accounts", "an isolated account"],
)
async def test_the_double_store_is_prevented(
    seed: Seed, subjects: dict[str, str], users: dict[str, str]
) -> None:
    ends = {side: await seed.js(side, user=users[side]) for side in SIDES}
    name = f"once-{users['leaf']}"
    for side, js in ends.items():
        await js.ensure_stream({"name": name, "subjects": [f"{name}.{subjects[side]}"]})
    for side, js in ends.items():
        assert await js.publish(f"{name}.{subjects[side]}", side.encode()) == 1
    for side in SIDES:  # what the other side has sent came before this answer, on the same link
        assert (await (await seed.js(side, SIDES[side == "hub"])).api("INFO"))["domain"] != side
    for side, js in ends.items():
        stored = await js.get_message(name, seq=1)
        assert stored is not None
        assert (stored.data, (await js.stream_info(name)).messages) == (side.encode(), 1)


async def test_an_acknowledgement_means_every_consumer_of_that_name_in_every_domain(seed: Seed) -> None:
    await acknowledge_at_the_hub(seed)

    async def both() -> bool:
        return await ack_floors(seed) == {"hub": 1, "leaf": 1}

    await until(both, "both have taken it")


async def test_acknowledgements_that_carry_their_domain_mean_one_consumer(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    flag = "feature_flags { js_ack_fc_v2: true }"
    async with open_seed(tmp_path_factory.mktemp("flag"), extra=flag) as one:
        await acknowledge_at_the_hub(one)
        assert await ack_floors(one) == {"hub": 1, "leaf": 0}


async def acknowledge_at_the_hub(seed: Seed) -> None:
    """Make consumers of one name in both domains, and acknowledge the first message of the hub's stream, not
    the leaf's."""
    config = {"name": "dur", "durable_name": "dur", "ack_policy": "explicit"}
    for side in SIDES:
        js = await seed.js(side)
        await js.ensure_stream({"name": "twins", "subjects": [f"twins.{side}"]})
        await js.create_consumer("twins", config)
        await js.publish(f"twins.{side}", b"")
    for side in reversed(SIDES):  # the hub's last
        pull = await (await seed.connect(side)).jetstream().pull_subscribe_bind("dur", "twins")
        (found,) = await pull.fetch(1, timeout=30)
    await found.ack_sync()


async def ack_floors(seed: Seed) -> dict[str, int]:
    """The ack floors of these consumers."""
    return {
        side: (await (await seed.js("hub", side)).consumer_info("twins", "dur")).ack_floor for side in SIDES
    }


async def test_unlinked_system_accounts_report_their_own_server_and_the_domains_work_all_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with open_seed(tmp_path_factory.mktemp("unlinked"), together=("ACC",)) as one:
        for side in SIDES:
            rows = await answers(await one.connect(side, "admin"), JSZ)
            assert [row["server"]["name"] for row in rows] == [f"{side}-server"]
            for domain in SIDES:
                assert (await (await one.js(side, domain)).api("INFO"))["domain"] == domain
            assert "System account connected" not in one.servers[side].log


async def test_two_leaves_of_one_domain_both_answer_for_it(seed: Seed) -> None:
    twin = configured(
        seed.servers["leaf"].directory.parent / "twin",
        "twin-server",
        "leaf",
        remote(seed.proxy.port, "ACC"),
        MORE,
    )
    client = await seed.connect("hub")
    try:
        await twin.start()

        async def both() -> bool:
            return len(await answers(client, "$JS.leaf.API.INFO")) == 2

        await until(both, "two servers answer for one domain")
    finally:
        await twin.kill()

    async def one() -> bool:
        return len(await answers(client, "$JS.leaf.API.INFO")) == 1

    await until(one, "one server answers for it again")


async def test_a_stream_of_the_other_domain_is_not_found_without_its_prefix(seed: Seed) -> None:
    await (await seed.js("hub", "leaf")).ensure_stream({"name": "far", "subjects": ["far"]})
    with pytest.raises(ApiError, match="stream not found"):
        await (await seed.js("hub")).stream_info("far")
    assert (await (await seed.js("leaf")).stream_info("far")).name == "far"
