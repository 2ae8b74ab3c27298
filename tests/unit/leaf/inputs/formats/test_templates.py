"""Device and metric by templates, from topics and subjects; filters of subjects that overlap."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.formats.message import fill_template, template_problem
from agent.leaf.inputs.nats.options import SubjectTemplate, overlapping

TOKENS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, ">"] if rest else tokens),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("{0}", "plant.north.pump"),
        ("{2}", "north"),
        ("{2+}", "north.pump"),
        ("{3}_{1}", "pump_plant"),
        ("{4}{5+}", ""),
        ("fixed", "fixed"),
    ],
)
def test_a_template_is_filled_from_the_parts_of_a_name(template: str, made: str) -> None:
    assert fill_template(template, "plant.north.pump", ".") == made
    assert template_problem(template) is None


@pytest.mark.parametrize("template", ["{", "{x}", "{01}", "{1+", "a}b", "{{1}}"])
def test_what_is_no_template_is_told_with_a_remedy(template: str) -> None:
    assert "write a part of the name as {2}" in (template_problem(template) or "")


@given(st.text(), st.text())
def test_whatever_stands_in_a_template_or_a_name_is_no_error(template: str, name: str) -> None:
    template_problem(template)
    fill_template(template, name, ".")


def covers(pattern: str, subject: tuple[str, ...]) -> bool:
    """What NATS itself does, the plain way."""
    tokens = pattern.split(".")
    if tokens[-1] == ">":
        tokens.pop()
        return (
            len(subject) > len(tokens) and covers(".".join(tokens), subject[: len(tokens)])
            if tokens
            else True
        )
    return len(tokens) == len(subject) and all(
        one in ("*", part) for one, part in zip(tokens, subject, strict=True)
    )


@given(FILTERS, FILTERS)
def test_filters_overlap_when_some_subject_comes_through_both(one: str, other: str) -> None:
    subjects = [found for size in range(1, 6) for found in product("ab", repeat=size)]
    both = any(covers(one, subject) and covers(other, subject) for subject in subjects)
    assert bool(list(overlapping([SubjectTemplate(filter=one), SubjectTemplate(filter=other)]))) is both


@pytest.mark.parametrize(
    "pattern",
    ["", "a..b", "a b", "a.>.b", "a*", ">", "*.a", "tel.x", "cmd.>", "$JS.API.>", "_INBOX.>", "a.\n"],
)
def test_a_filter_that_is_none_or_not_ours_is_told(pattern: str) -> None:
    assert len(list(SubjectTemplate(filter=pattern).problems())) == 1


def test_filters_of_ones_own_are_taken() -> None:
    for pattern in ("plant", "plant.*.x", "plant.>", "plant.*.>"):
        assert list(SubjectTemplate(filter=pattern).problems()) == []
