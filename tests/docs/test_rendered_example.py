"""deploy/nats: the example of a rendered site is what rendering makes now, and nothing in it is secret."""

from __future__ import annotations

import re
from pathlib import Path

from agent.cli.render import write
from agent.config import read_table
from agent.leaf.inputs import OPTIONS

NATS = Path(__file__).parents[2] / "deploy" / "nats"


def test_the_example_is_what_is_rendered(tmp_path: Path) -> None:
    write(read_table(NATS / "site.toml"), tmp_path, OPTIONS)
    rendered = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in (NATS / "site").iterdir()}
    assert committed == rendered, "petiole render deploy/nats/site.toml --out deploy/nats/site"


def test_the_example_holds_no_seed_and_no_password() -> None:
    for path in NATS.rglob("*.*"):
        text = path.read_text()
        assert not re.search(r"\bS[UANOC][A-Z2-7]{56}\b|password", text), path
