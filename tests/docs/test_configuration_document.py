"""docs/configuration.md is what the types of the configuration say."""

from __future__ import annotations

import re

from msgspec.structs import fields

from deploy import reference


def test_the_document_is_that_of_the_types() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make reference`"


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
