"""Secrets, planted wherever one can be configured, are in nothing that is said, logged or left open."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli.main import app

PLANTED = "pl4nted5ecret"
SEED = "SUAGX3V6VNRVTVJVNXHKXQJ5GJCQ5XUZAHVQW5YJTWJ4HZPZ4BX3QJ2B7U"
LEAF = 'domain = "edge-1"\nstate_dir = "{state}"\n'
HUB = 'role = "hub"\ndomain = "hub"\nstate_dir = "{state}"\n'
MISTAKEN = {
    "in place of the files that hold them": LEAF
    + f"""
[nats]
hub_urls = ["nats-leaf://h:1"]
seed_file = "{SEED}"
link_seed_file = "{SEED}"
system_seed_file = ["{SEED}"]
[nats.mqtt]
users = [{{ name = "u", password_file = "{PLANTED}" }}]
[admin]
token_file = "{PLANTED}"
tls_cert = "/none"
tls_key = "{PLANTED}"
[[input]]
type = "http"
token_file = "{PLANTED}"
[[input]]
type = "mqtt"
url = "mqtt://h:1883"
user = "u"
password_file = "{PLANTED}"
topics = [{{ filter = "a" }}]
[[input]]
type = "prometheus"
urls = ["http://h:9/metrics"]
token_file = "{PLANTED}"
""",
    "under keys that there are not": LEAF
    + f"""
[nats]
hub_urls = ["nats-leaf://h:1"]
seed = "{SEED}"
[nats.extra.jetstream]
key = "{PLANTED}"
[nats.extra.leafnodes.authorization]
password = "{PLANTED}"
[nats.remote]
nkey = "{SEED}"
[nats.mqtt]
users = [{{ name = "u", password = "{PLANTED}" }}]
[admin]
token = "{PLANTED}"
[[input]]
type = "exec"
command = "program --password {PLANTED}"
env = {{ PASSWORD = "{PLANTED}" }}
""",
    "in addresses": LEAF
    + f"""
[nats]
hub_urls = ["nats-leaf://u:{PLANTED}@h:9x", "http://u:{PLANTED}@h", "{PLANTED}@h"]
[[input]]
type = "mqtt"
url = "mqtt://u:{PLANTED}@h:1883"
topics = [{{ filter = "a" }}]
[[input]]
type = "prometheus"
urls = ["http://u:{PLANTED}@h/metrics", "htp://u:{PLANTED}@h:9x"]
""",
    "in an address instead of a list": LEAF + f'[nats]\nhub_urls = "nats-leaf://u:{PLANTED}@h:9"\n',
    "where the public half belongs": HUB + f'[[leaf]]\ndomain = "a"\nkey = "{SEED}"\nrevoked = ["{SEED}"]\n',
    "in a line that is not TOML": LEAF + f'[admin]\ntoken_file = "{PLANTED}\n',
}


def leaks(text: str, *others: str) -> list[str]:
    """The lines of a text that hold a secret."""
    return [line for line in text.splitlines() if any(one in line for one in (PLANTED, SEED[:20], *others))]


@pytest.mark.parametrize("where", MISTAKEN)
@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["run"]])
def test_a_secret_that_stands_where_it_should_not_is_not_repeated(
    where: str, command: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(MISTAKEN[where].replace("{state}", str(tmp_path / "state")))
    done = CliRunner().invoke(app, [*command, "-c", str(config)])
    assert done.exit_code == 2
    assert done.output
    assert leaks(done.output) == []


@pytest.mark.parametrize("shown", ["{}", "/run/{}"])
def test_a_path_is_shown_and_what_may_be_the_secret_is_not(shown: str, tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    text = LEAF.format(state=tmp_path) + f'[nats]\nhub_urls = ["nats-leaf://h:1"]\nseed_file = "{shown}"\n'
    config.write_text(text.format("name"))
    said = CliRunner().invoke(app, ["check", "--offline", "--json", "-c", str(config)]).output
    assert (f"{shown.format('name')} cannot be read" in said) is (shown != "{}")
    assert "cannot be read" in said
