"""docs/configuration.md is what the types of the configuration say; the examples in
deploy/nats are what rendering makes now, and nothing in it is secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from agent.cli.configuration import read
from agent.cli.render import rendered
from deploy import reference


def test_the_document_is_that_of_the_types() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make docs WRITE=reference`"


def test_every_key_has_a_row_with_a_sentence_and_every_table_a_heading() -> None:
    text = reference.page()
    for kind in reference.structs():
        for field in fields(kind):
            if reference.is_table(kind, field):
                heading = rf"^#+ `\[\[?([a-z.]+\.)?{field.encode_name}\]\]?`$"
                assert re.search(heading, text, re.MULTILINE) or field.name == "input"
            else:
                assert f"| {reference.sentence(kind, field.encode_name)} |" in text


def test_no_sentence_is_of_a_key_that_is_gone() -> None:
    kinds = {one.__name__: one for kind in reference.structs() for one in kind.__mro__}
    for name, sentences in reference.SENTENCES.items():
        assert sentences.keys() <= {field.encode_name for field in fields(kinds[name])}


NATS = Path(__file__).parents[2] / "deploy" / "nats"


@pytest.mark.parametrize("machine", ["hub", "leaf"])
def test_the_example_is_what_is_rendered(machine: str) -> None:
    texts = rendered(read(NATS / machine / "petiole.toml"))
    assert {path.name for path in (NATS / machine).iterdir()} == {*texts, "petiole.toml"}
    for name, (text, _) in texts.items():
        command = f"petiole render -c deploy/nats/{machine}/petiole.toml --out deploy/nats/{machine}"
        assert (NATS / machine / name).read_text() == text, command


def test_the_example_holds_no_seed_and_no_password() -> None:
    for path in NATS.rglob("*.*"):
        text = path.read_text()
        assert not re.search(r"\bS[UANOC][A-Z2-7]{56}\b|password", text), path
