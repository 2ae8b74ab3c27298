"""Which permission is missing, by what a hub tells a leaf and by what a server refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.nats_server import subject_covers, subjects_overlap
from agent.cli.checks import Level
from agent.cli.checks.permissions import at_home, is_granted, on_the_hub, sample
from agent.server.link_permissions import leaf_link
from agent.server.permissions import Permissions

NEEDED = leaf_link("edge-1", ["normal", "bulk"])
ALL: dict[str, Any] = {"export": {"allow": list(NEEDED.publish)}, "import": {"allow": list(NEEDED.subscribe)}}


def matches(pattern: str, subject: str) -> bool:
    """Whether a literal subject matches, as NATS defines it."""
    have, want = pattern.split("."), subject.split(".")
    if have[-1] == ">":
        return len(want) >= len(have) and all(
            left in ("*", right) for left, right in zip(have[:-1], want, strict=False)
        )
    return len(have) == len(want) and all(
        left in ("*", right) for left, right in zip(have, want, strict=True)
    )


tokens = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda head, tail: ".".join([*head, *tail]),
    st.lists(tokens, min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)
literals = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5).map(".".join)


@given(patterns, patterns, literals)
def test_what_covers_a_pattern_matches_all_that_it_matches(granted: str, needed: str, subject: str) -> None:
    if subject_covers(granted, needed) and matches(needed, subject):
        assert matches(granted, subject)


@given(patterns, patterns, literals)
def test_patterns_that_match_one_subject_overlap(one: str, other: str, subject: str) -> None:
    if matches(one, subject) and matches(other, subject):
        assert subjects_overlap(one, other)


@given(patterns)
def test_a_pattern_covers_itself_and_its_sample(one: str) -> None:
    assert subject_covers(one, one)
    assert subject_covers(one, sample(one))
    assert matches(one, sample(one))


@pytest.mark.parametrize(
    ("granted", "needed", "yes"),
    [
        ("a.>", "a.b.*", True),
        ("a.>", "a", False),
        ("a.*", "a.>", False),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a.*", False),
        (">", "a.>", True),
    ],
)
def test_a_permission_covers_another_or_not(granted: str, needed: str, yes: bool) -> None:
    assert subject_covers(granted, needed) is yes


def test_a_hub_that_grants_all_is_well_and_so_is_one_without_any_rule() -> None:
    for info in (ALL, {}, {"export": {"allow": [">"]}, "import": {"allow": [">"]}}):
        (finding,) = on_the_hub("edge-1", ["normal", "bulk"], NEEDED, info)
        assert finding.level is Level.OK


TENANTS = leaf_link("edge-1", ["normal", "bulk"], ["PLANS"], ["LOCAL"], tenant=True)


@pytest.mark.parametrize(
    ("needed", "subject"),
    [(needed, subject) for needed in (NEEDED, TENANTS) for subject in (*needed.publish, *needed.subscribe)],
)
def test_each_permission_that_is_missing_is_told_with_the_line_to_add(
    needed: Permissions, subject: str
) -> None:
    info = {
        "export": {"allow": [one for one in needed.publish if one != subject]},
        "import": {"allow": [one for one in needed.subscribe if one != subject]},
    }
    findings = on_the_hub("edge-1", ["normal", "bulk"], needed, info)
    assert findings
    for finding in findings:
        assert finding.level is not Level.OK
        assert f'add "{subject}" to permissions.' in finding.remedy


def test_a_class_that_the_hub_does_not_know_is_one_finding() -> None:
    granted = leaf_link("edge-1", ["normal"])
    info = {"export": {"allow": granted.publish}, "import": {"allow": granted.subscribe}}
    (finding,) = on_the_hub("edge-1", ["normal", "bulk"], NEEDED, info)
    assert 'add "bulk" to classes' in finding.remedy


def test_what_is_denied_is_not_granted_whatever_is_allowed() -> None:
    info = {"export": {"allow": [">"], "deny": ["petiole.v1.*.edge-1"]}}
    assert not is_granted(info, "publish", "petiole.v1.announce.edge-1")
    assert is_granted(info, "publish", "petiole.v1.announce.edge-2")
    assert is_granted(info, "subscribe", "petiole.v1.announce.edge-1")


def test_a_local_refusal_is_told_by_the_permission_that_lacks() -> None:
    needed = Permissions(("tel.Edge.>", "$JS.ACK.COMMANDS.>"), ("_INBOX_Edge.>",))
    refusals = ['nats: permissions violation for publish to "tel.edge.petiole-check"']
    (finding,) = at_home(needed, refusals, "$JS.ACK.COMMANDS.petiole-check", embedded=False)
    assert (
        finding.remedy
        == 'add "tel.Edge.>" to permissions.publish.allow of that user and reload the local server'
    )
    (finding,) = at_home(needed, [], "$JS.ACK.COMMANDS.petiole-check", embedded=False)
    assert finding.level is Level.OK
    refusals = ['nats: permissions violation for publish to "$js.ack.commands.petiole-check"']
    (finding,) = at_home(needed, refusals, "$JS.ACK.COMMANDS.petiole-check", embedded=True)
    assert "$JS.ACK.COMMANDS.>" in finding.sentence
