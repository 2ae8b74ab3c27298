"""The configuration of a server that no agent runs follows from the agent's own, and holds no secret."""

from __future__ import annotations

import tomllib
from pathlib import Path

import nkeys
import pytest
from typer.testing import CliRunner, Result

from agent.cli.main import app
from tests.unit.server.test_render import key_of

SEEDS = 'seed_file = "/keys/own.nk"\nsystem_seed_file = "/keys/own_system.nk"\n'
HUB = f"""
role = "hub"
domain = "hub"
[[leaf]]
domain = "edge-1"
key = "{key_of(1)}"
tenant = "acme"
[[leaf]]
domain = "edge-2"
revoked = ["{key_of(2)}"]
[registrar]
max_bytes = "1GiB"
replicas = 1
[nats]
server = "external"
store_dir = "/srv/store"
{SEEDS}"""
LEAF = f"""
domain = "edge-2"
input = [{{ type = "host", class = "bulk" }}]
[[class]]
name = "bulk"
[nats]
server = "external"
store_dir = "/srv/store"
hub_urls = ["nats-leaf://hub.example:7422"]
apps = ["plc"]
{SEEDS}"""
CLUSTER = """
[nats.cluster]
name = "b"
listen = "10.0.0.2:6222"
routes = ["10.0.0.1:6222", "10.0.0.2:6222", "[fd00::3]:6222"]
password_file = "password"
"""


class Rendering:
    """A configuration and the directory that it is rendered into."""

    def __init__(self, directory: Path) -> None:
        self.file, self.out = directory / "petiole.toml", directory / "out"
        self.password = directory / "password"

    def __call__(self, text: str) -> Result:
        self.file.write_text(text)
        return CliRunner().invoke(app, ["render", "-c", str(self.file), "--out", str(self.out)])

    def text(self, configuration: str, name: str = "nats.conf") -> str:
        done = self(configuration)
        assert done.exit_code == 0, done.output
        return (self.out / name).read_text()


@pytest.fixture
def render(tmp_path: Path) -> Rendering:
    return Rendering(tmp_path)


def test_a_leaf_with_a_revoked_key_is_not_let_in(render: Rendering) -> None:
    text = render.text(HUB)
    assert f'nkey: "{key_of(1)}"' in text
    assert "TENANT_acme: {" in text
    assert "edge-2" not in text


def test_a_leaf_has_its_classes_and_programs_and_additions(render: Rendering) -> None:
    text = render.text(LEAF + '[nats.remote.tls]\nca_file = "/ca"\n[nats.extra]\nwrite_deadline = "3s"\n')
    assert '"$JS.API.CONSUMER.INFO.COMMANDS.plc"' in text
    assert '"$JS.API.STREAM.INFO.TEL_edge-2_bulk"' in text
    assert 'ca_file: "/ca"' in text
    assert 'write_deadline: "3s"' in text
    assert 'include "identity.conf"' in text


def test_rendering_again_writes_nothing_that_has_not_changed(render: Rendering) -> None:
    render.text(LEAF)
    before = (render.out / "nats.conf").stat().st_mtime_ns
    assert render(LEAF).output == f"unchanged: {render.out}/nats.conf\n"
    assert (render.out / "nats.conf").stat().st_mtime_ns == before
    assert render(LEAF.replace("plc", "hmi")).output == f"written: {render.out}/nats.conf\n"


def test_a_server_of_a_cluster_has_its_name_and_the_password_in_a_file_of_its_own(render: Rendering) -> None:
    render.password.write_text("of-the-three\n")
    render.password.chmod(0o600)
    text = render.text(HUB.replace("replicas = 1", "replicas = 3") + CLUSTER)
    assert 'server_name: "hub-b"' in text
    assert 'include "cluster.conf"' in text
    assert "of-the-three" not in text
    secret = render.out / "cluster.conf"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text().count("of-the-three") == 4
    assert "@[fd00::3]:6222" in secret.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEAF.replace("external", "embedded"), 'nats.server is "embedded"'),
        (LEAF.replace('store_dir = "/srv/store"', ""), "nats.store_dir is missing"),
        (LEAF.replace('hub_urls = ["nats-leaf://hub.example:7422"]', ""), "address of its hub"),
        (HUB.replace("replicas = 1", "replicas = 3") + CLUSTER, "cannot be read"),
        (HUB + CLUSTER.replace('name = "b"', ""), "nats.cluster.name: is missing"),
        (HUB + "[nats.extra]\naccounts = 1\n", "nats.extra.accounts:"),
    ],
    ids=["embedded", "store", "hub", "password", "name", "extra"],
)
def test_a_configuration_that_makes_no_server_is_refused_and_nothing_is_written(
    render: Rendering, text: str, said: str
) -> None:
    refused = render(text)
    assert refused.exit_code == 2
    assert said in refused.output
    assert not render.out.exists()


def test_a_private_key_is_refused_and_not_shown(render: Rendering) -> None:
    seed = nkeys.encode_seed(bytes([7]) * 32, nkeys.PREFIX_BYTE_USER).decode()
    refused = render(HUB.replace(key_of(1), seed))
    assert refused.exit_code == 2
    assert "leaf[1].key: is a private key" in refused.output
    assert seed[2:] not in refused.output
    assert tomllib.loads(render.file.read_text())["leaf"][0]["key"] == seed
