"""Each known issue of JetStream on leaf nodes, made with servers of somebody's own whose users may do
everything: `petiole check` finds it, and finds it gone once its remedy is applied."""

from __future__ import annotations

from pathlib import Path

from agent.cli.checks import Finding, outcome
from agent.cli.checks.link import GROUP as LINK
from agent.contract import Exit
from tests.harness.check_cases import bad, check, of, pair
from tests.harness.wait import until

_ASIDE = ("registrar does not run", "no link to the hub")


def domains(found: list[Finding]) -> list[str]:
    """What is bad about domains and streams. Beside servers made by hand no registrar runs, and a leaf dials
    a hub that was started again when it likes."""
    about = [one for one in found if one.group in ("domain", "streams", LINK)]
    return bad([one for one in about if not any(words in one.sentence for words in _ASIDE)])


async def test_jetstream_that_is_extended_by_accident_is_found_until_both_sides_have_a_domain(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub(domain="")
        await one.start_leaf(domain="", system=True)

        async def appears() -> bool:
            """The request goes over the link once the leaf has heard what the hub listens to."""
            await one.make_stream(one.leaf_port, "T", "t.>")
            return await one.has_stream(one.hub_port, "T")

        await until(appears, "the accident itself: what is made at the leaf appears at the hub")
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
        words = "2 servers answer for domain edge-1: leaf-open, other-open"

        async def found() -> bool:
            """An answer that comes late, over two links, is not waited for by a check."""
            said = await check(one.config)
            return any(words == it.sentence and outcome(said) is it.exit is Exit.CONFLICT for it in said)

        await until(found, words)
        await one.end("other")
        await one.start_leaf(name="other", domain="edge-2")
        assert domains(await check(one.config)) == []
