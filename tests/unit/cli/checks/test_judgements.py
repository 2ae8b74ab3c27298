"""What `petiole check` says of what was seen: every case with its level, and a remedy unless it is well; and
findings on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.files import Room
from agent.base.nats_server import MINIMUM
from agent.cli.checks import (
    WIDTH,
    Finding,
    Group,
    Level,
    agent_status,
    certificates,
    findings_as_json,
    lines,
    link,
    machine,
    outcome,
    server,
    streams,
)
from agent.cli.checks.leafnode_probe import Joined
from agent.cli.checks.machine import Secret
from agent.cli.checks.streams import Streams, Trace
from agent.contract import Exit
from agent.leaf.link.status import ORDINARY, PATIENT, SENTENCES, LinkState
from tests.harness.examples import costly

OK, WARNING, FAILURE = Level
GIB = 2**30
NOW = 1_795_000_000.0
A, LINK = Group("a"), Group("link")


def told(finding: Finding) -> str:
    return f"{finding.level}: {finding.sentence} > {finding.remedy}"


def only(findings: list[Finding], level: Level, words: str) -> None:
    """There is one finding, of this level and with these words, and with a remedy unless it is well."""
    (finding,) = findings
    assert finding.level is level, told(finding)
    assert words in told(finding), told(finding)
    assert bool(finding.remedy) is (level is not OK)


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        ("2.15.1", OK, "is nats-server 2.15.1"),
        ("2.15.9", OK, ""),
        ("2.16.0", WARNING, "newer than this release knows"),
        ("2.15.0", FAILURE, "stops without an error (#8633)"),
        ("2.14.8", FAILURE, "skips without a word"),
        ("2.14.0", FAILURE, "skips without a word"),
        ("2.12.7", FAILURE, "no durable sources"),
        ("1.4.1", FAILURE, "no durable sources"),
        ("v2.15.1-dev", OK, ""),
        ("latest", FAILURE, "tells no version"),
    ],
)
def test_a_version_is_judged_by_its_known_faults(text: str, level: Level, words: str) -> None:
    only([server.judge_version("the hub", text)], level, words)


def test_every_version_that_is_refused_has_a_fault_that_says_why() -> None:
    for minor in range(20):
        for patch in range(20):
            version = (2, minor, patch)
            if version < MINIMUM:
                assert any(fault.first <= version < fault.fixed for fault in server.KNOWN_DEFECTS), version


@pytest.mark.parametrize(
    ("wall", "synchronised", "ahead", "levels", "words"),
    [
        (NOW, True, None, [OK], "synchronised"),
        (0.0, False, None, [FAILURE], "1970-01-01 00:00 UTC: it is not set"),
        (NOW, False, None, [WARNING], "does not call the clock synchronised"),
        (NOW, True, (1.5, 0.0), [OK, OK], "differ by less than 2 s"),
        (NOW, True, (-3.0, 2.0), [OK, OK], "differ by less than 4 s"),
        (NOW, True, (-45.0, 0.1), [OK, WARNING], "45 s behind the hub's"),
        (NOW, True, (7_300.0, 0.1), [OK, FAILURE], "2 hours ahead of the hub's"),
        (0.0, False, (-NOW, 0.1), [FAILURE, FAILURE], "days behind the hub's"),
    ],
)
def test_a_clock_is_judged_by_itself_and_beside_the_hubs(
    wall: float, synchronised: bool, ahead: tuple[float, float] | None, levels: list[Level], words: str
) -> None:
    findings = list(certificates.judge_clock(wall, synchronised, ahead))
    assert [finding.level for finding in findings] == levels
    assert any(words in told(finding) for finding in findings), [told(finding) for finding in findings]


def test_the_hubs_time_is_compared_with_the_middle_of_the_conversation() -> None:
    traces = {"a": trace("hub", "hub"), "b": trace("hub", "hub")}
    joined = Joined({}, traces=traces, asked=NOW + 9.0, answered=NOW + 11.0)
    assert link.ahead(joined) == (10.0, 1.0)
    assert link.ahead(Joined({})) is None


HUB = {"jetstream": True, "domain": "hub"}


@pytest.mark.parametrize(
    ("info", "hub", "shares", "level", "words"),
    [
        ({"domain": "edge-1"}, HUB, False, OK, "the local server's domain is edge-1"),
        ({"domain": "edge-1"}, HUB, True, OK, ""),
        ({}, HUB, False, FAILURE, "has no domain > write jetstream { domain: edge-1 }"),
        ({}, {"jetstream": True}, False, FAILURE, "the local server's JetStream has no domain"),
        ({}, {"jetstream": True}, True, FAILURE, "extends the hub's JetStream, for neither has a domain"),
        (
            {"domain": "hub"},
            HUB,
            True,
            FAILURE,
            "extends the hub's JetStream, for both are in the domain hub",
        ),
        ({"domain": "hub"}, HUB, False, FAILURE, "domain is hub, this configuration's edge-1"),
        ({"domain": "edge-2"}, None, False, FAILURE, "domain is edge-2"),
        (None, HUB, False, FAILURE, "the local server has no JetStream"),
    ],
)
def test_the_local_domain_is_judged_beside_the_hubs(
    info: dict[str, Any] | None, hub: dict[str, Any] | None, shares: bool, level: Level, words: str
) -> None:
    only(list(server.jetstream("edge-1", info, hub, shares)), level, words)


@pytest.mark.parametrize(
    ("hub", "level", "words"),
    [
        (HUB, OK, "the hub's domain is hub"),
        ({"jetstream": True}, FAILURE, "has no domain"),
        ({"domain": "hub"}, FAILURE, "has no JetStream"),
        ({"jetstream": True, "domain": "cloud"}, FAILURE, "the hub's domain is cloud"),
    ],
)
def test_the_hubs_domain_is_judged_by_its_greeting(hub: dict[str, Any], level: Level, words: str) -> None:
    only([server.hub_jetstream(hub, "hub")], level, words)


def test_a_hub_that_takes_smaller_messages_than_the_leaf_is_named() -> None:
    own, smaller = {"max_payload": 8_388_608}, {"max_payload": 1_048_576}
    only(list(server.message_sizes(own, smaller)), Level.WARNING, "up to 1048576 bytes")
    for ours, theirs in ((own, own), (smaller, own), ({}, smaller), (own, {})):
        assert not list(server.message_sizes(ours, theirs))


def test_a_link_of_the_system_account_is_told_from_another() -> None:
    varz = {"system_account": "SYS"}
    assert server.shares_system(varz, {"leafs": [{"account": "ACC"}, {"account": "SYS"}]})
    assert not server.shares_system(varz, {"leafs": [{"account": "ACC"}]})
    assert not server.shares_system(varz, {"leafs": None})
    assert not server.shares_system({}, {})


@pytest.mark.parametrize(
    ("links", "level", "words"),
    [
        ([{"account": "PETIOLE", "name": "hub-1"}, {"account": "SYS"}], OK, "is linked to hub-1"),
        ([{"account": "ACC", "name": "hub-1"}], FAILURE, "of account ACC, and the agent watches PETIOLE"),
        ([], FAILURE, "has no link to the hub"),
        (None, FAILURE, "has no link to the hub"),
    ],
)
def test_a_link_is_that_of_the_account_that_the_agent_watches(
    links: list[dict[str, Any]] | None, level: Level, words: str
) -> None:
    only([server.linked({"leafs": links})], level, words)


@pytest.mark.parametrize(
    ("left", "level", "words"),
    [
        (Room(20 * GIB, 2**26), OK, "the store may take 7.0 GiB"),
        (Room(6 * GIB, 2**26), WARNING, "set max_file_store to 7104MiB or less"),
        (Room(2**20, 2**26), FAILURE, "free at least 128 MiB"),
        (None, WARNING, "is not known"),
    ],
)
def test_the_store_must_find_room_on_its_disk(left: Room | None, level: Level, words: str) -> None:
    only([server.judge_room(8 * GIB, GIB, left, "max_file_store")], level, words)


def test_the_remedy_for_a_short_disk_leaves_nothing_to_warn_of() -> None:
    left = Room(6 * GIB, 2**26)
    only([server.judge_room(7104 * 2**20, GIB, left, "max_file_store")], OK, "")


def test_the_remedy_for_a_short_disk_is_no_limit_that_the_configuration_would_be_refused_with() -> None:
    left = Room(6 * GIB, 2**26)
    remedy = (
        "make max_bytes of what is stored there smaller by 64MiB in all, and set max_file_store to 7104MiB"
    )
    finding = server.judge_room(8 * GIB, GIB, left, "max_file_store", 7168 * 2**20)
    assert remedy in finding.remedy
    only([server.judge_room(7104 * 2**20, GIB, left, "max_file_store", 7104 * 2**20)], OK, "")
    finding = server.judge_room(8 * GIB, GIB, left, "max_file_store", 7104 * 2**20)
    assert finding.remedy.startswith("set max_file_store to 7104MiB or less")


def test_what_the_server_says_of_its_health_is_told_with_what_helps() -> None:
    assert list(server.health({"status": "ok"})) == []
    full = {
        "status_code": 500,
        "errors": [{"stream": "TEL_a", "error": "write error: no space left on device"}],
    }
    (finding,) = server.health(full)
    assert (finding.exit, "free some room" in finding.remedy) == (Exit.LOSS, True)


DIRECTORY = Secret("directory", Path("/s"), 0o700, 7)


@pytest.mark.parametrize(
    ("directory", "secret", "level", "words"),
    [
        (DIRECTORY, Secret("key", Path("/s/k"), 0o600, 7), OK, "by their owner only"),
        (DIRECTORY, Secret("key", Path("/s/k"), 0o640, 7), FAILURE, "(mode 0640) > chmod 600 /s/k"),
        (DIRECTORY, Secret("key", Path("/s/k"), 0o600, 0), FAILURE, "chown --reference=/s /s/k"),
        (DIRECTORY, Secret("token", Path("/s/k"), error="no such file"), FAILURE, "cannot be read"),
        (DIRECTORY._replace(mode=0o777), Secret("key", Path("/s/k"), 0o600, 7), FAILURE, "chmod 700 /s"),
        (DIRECTORY._replace(error="gone"), Secret("key", Path("/s/k"), 0o600, 7), FAILURE, "as root"),
    ],
)
def test_secrets_are_their_owners_alone(directory: Secret, secret: Secret, level: Level, words: str) -> None:
    only(list(machine.judge_secrets(directory, [secret])), level, words)


def trace(server_name: str, domain: str, *stored: str) -> Trace:
    return Trace("test", server_name, domain, NOW, frozenset(), frozenset(), frozenset(stored))


@pytest.mark.parametrize(
    ("traces", "granted", "level", "words"),
    [
        ({"test": (trace("leaf", "edge-1", "L"), trace("hub", "hub"))}, None, OK, "nowhere else"),
        (
            {"test": (trace("leaf", "edge-1", "L"), trace("hub", "hub", "H"))},
            None,
            FAILURE,
            "H in domain hub",
        ),
        ({"test": (trace("leaf", "", "L"), trace("hub", "", "L"))}, None, FAILURE, "L on a server without"),
        (None, {"export": {"allow": ["petiole.>"]}}, OK, "lets no subject of a stream through"),
        (None, {"export": {"allow": [">"]}}, WARNING, "lets test through"),
        (None, {}, WARNING, "lets test through"),
        (None, None, WARNING, "is not known"),
    ],
)
def test_a_subject_is_stored_once(
    traces: Mapping[str, tuple[Trace, ...]] | None, granted: dict[str, Any] | None, level: Level, words: str
) -> None:
    seen = Streams({"L": ("test",)}, traces)
    only(list(streams.twice(seen, "leaf", granted)), level, words)


def test_a_domain_has_one_server() -> None:
    assert list(streams.two_leaves("edge-1", 1)) == []
    (finding,) = streams.two_leaves("edge-1", 2, ["b", "a"])
    assert (finding.exit, "edge-1: a, b" in finding.sentence) == (Exit.CONFLICT, True)


def status(state: LinkState, seconds: float | None = None) -> dict[str, Any]:
    """What a leaf's `/status` shows in a state."""
    link = {"state": state, "sentence": "s", "attention": state not in ORDINARY | PATIENT}
    return {
        "role": "leaf",
        "domain": "edge-1",
        "link": link,
        "classes": {"normal": {"seconds_to_loss": seconds}},
    }


@pytest.mark.parametrize("state", LinkState)
def test_every_state_of_the_link_is_a_finding_with_a_remedy_unless_it_is_ordinary(state: LinkState) -> None:
    assert state in SENTENCES
    (found,) = [finding for finding in agent_status.judge(status(state)) if finding.group == "link"]
    expected = OK if state in ORDINARY else WARNING if state in PATIENT else FAILURE
    assert (found.level, bool(found.remedy)) == (expected, expected is not OK)


@pytest.mark.parametrize(
    ("seconds", "level", "words"),
    [
        (None, OK, "loses nothing as things go"),
        (10 * 86_400.0, OK, "in 10 days"),
        (7_200.0, WARNING, "in 2 hours"),
        (600.0, FAILURE, "in 10 minutes"),
        (0.0, FAILURE, "refused or discarded now"),
    ],
)
def test_the_time_to_first_loss_is_judged(seconds: float | None, level: Level, words: str) -> None:
    found = agent_status.judge(status(LinkState.FLOWING, seconds))
    only([finding for finding in found if finding.group == "loss"], level, words)


def test_a_full_hub_and_a_leaf_that_does_not_flow_are_told() -> None:
    leaves = {f"edge-{number}": {"state": "not linked"} for number in range(30)} | {"z": {"state": "flowing"}}
    fleet = {"state": "well", "aggregates": {"T": {"full": True}}, "leaves": leaves}
    findings = list(agent_status.judge({"role": "hub", "fleet": fleet}))
    assert len([finding for finding in findings if finding.level is WARNING]) == 21
    assert any("1 of 31 leaves flow" in finding.sentence for finding in findings)
    assert any("10 leaves more" in finding.sentence for finding in findings)
    assert [finding.sentence for finding in findings if finding.level is FAILURE] == [
        "T is full: every leaf waits, and fills next"
    ]


@pytest.mark.parametrize("led", [True, False])
def test_a_hub_that_stands_by_is_well_as_long_as_another_leads(led: bool) -> None:
    fleet = {"state": "standby: …", "standby": led, "aggregates": {}, "leaves": {}}
    findings = list(agent_status.judge({"role": "hub", "fleet": fleet}))
    assert any(finding.level is FAILURE for finding in findings) is not led


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    assert outcome([A.ok(""), A.warning("", "b")]) is Exit.WELL
    for codes, expected in (
        ([Exit.FAILED], Exit.FAILED),
        ([Exit.FAILED, Exit.UNREACHABLE], Exit.UNREACHABLE),
        ([Exit.UNREACHABLE, Exit.CONFLICT, Exit.LOSS], Exit.LOSS),
        ([Exit.LOSS, Exit.USAGE], Exit.USAGE),
    ):
        assert outcome([A.failure("b", "c", code) for code in codes]) is expected


def test_the_document_has_every_fault_of_a_version_and_every_group() -> None:
    text = (Path(__file__).parents[4] / "docs" / "check.md").read_text()
    for fault in server.KNOWN_DEFECTS:
        assert fault.what in text
        assert f"nats-server {fault.source}" in text
    for group in (certificates.GROUP, certificates.CLOCK, machine.FILES, streams.GROUP, server.SERVER):
        assert group in text


@pytest.mark.parametrize(
    ("varz", "interval", "level", "words"),
    [
        ({"sync_always": True}, 0.0, OK, "before it acknowledges"),
        ({"sync_always": True}, 1.0, OK, "before it acknowledges"),
        ({"sync_interval": 10**9}, 1.0, OK, "each 1 s, and leaves keep their copies"),
        ({"sync_interval": 2 * 10**9}, 1.0, WARNING, "acknowledged is not synced"),
        ({"sync_interval": 10**9}, 0.0, WARNING, "acknowledged is not synced"),
        ({}, 0.0, WARNING, "each 120 s"),
    ],
)
def test_a_server_syncs_before_it_acknowledges_or_as_the_hub_wants_it(
    varz: dict[str, Any], interval: float, level: Level, words: str
) -> None:
    only([server.synced({"jetstream": {"config": varz}}, interval)], level, words)


def test_a_file_system_that_may_lose_a_replaced_file_is_named() -> None:
    assert list(server.flushes("ext4")) == []
    only(list(server.flushes("xfs")), WARNING, "file system (xfs)")
    only(list(server.flushes(None)), WARNING, "file system (unknown)")


words = st.text(max_size=30)


def test_failures_stand_last_next_to_the_sum() -> None:
    findings = [
        LINK.failure("it is down", "look at the network"),
        certificates.CLOCK.ok("it is set"),
        A.warning("b", "c"),
    ]
    assert list(lines(findings)) == [
        "clock         ok      it is set",
        "a             warning b",
        "                      > c",
        "link          failure it is down",
        "                      > look at the network",
        "1 failure, 1 warning, 1 ok",
    ]


@given(st.lists(words, max_size=30).map(" ".join), words)
@costly()
def test_no_line_is_wider_than_the_terminal_or_moves_its_cursor(sentence: str, remedy: str) -> None:
    for line in lines([LINK.failure(sentence, remedy)]):
        assert line.isprintable() or not line
        # What is copied is not broken: a single long word may stand out.
        assert len(line) <= WIDTH or max(map(len, line.split())) > WIDTH - 24


def test_a_subject_is_never_broken() -> None:
    subject = "$JS.edge-1-of-the-north-plant.API.CONSUMER.RESET.TEL_edge-1-of-the-north-plant_normal.*"
    text = "\n".join(lines([LINK.failure("it lacks one", f'add "{subject}" there')]))
    assert subject in text


def test_json_holds_every_finding_and_the_exit_code() -> None:
    findings = [A.ok("b"), LINK.failure("d", "e", Exit.UNREACHABLE)]
    assert json.loads(json.dumps(findings_as_json(findings))) == {
        "exit": 5,
        "findings": [
            {"group": "a", "level": "ok", "sentence": "b", "remedy": ""},
            {"group": "link", "level": "failure", "sentence": "d", "remedy": "e"},
        ],
    }
