"""A site from one file: what is refused, what is written, and that nothing secret is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import nkeys
import pytest
from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.cli.render import Written, write
from agent.config import ConfigError, read_table
from agent.leaf.inputs import OPTIONS
from tests.unit.server.test_render import key_of

SITE = f"""
tenants = ["acme"]

[hub]
urls = ["nats-leaf://hub.example:7422"]
server = [{{ listen = "127.0.0.1:4222" }}]

[leaves.config]
class = [{{ name = "normal" }}, {{ name = "bulk", discard = "old" }}]

[[leaf]]
domain = "edge-1"
key = "{key_of(1)}"
tenant = "acme"

[[leaf]]
domain = "edge-2"
config = {{ nats = {{ apps = ["plc"] }}, input = [{{ type = "host" }}] }}
"""
CLUSTER = """
[hub]
urls = ["nats-leaf://a.example:7422", "nats-leaf://b.example:7422", "nats-leaf://c.example:7422"]
[[hub.server]]
name = "a"
cluster_listen = "10.0.0.1:6222"
[[hub.server]]
name = "b"
cluster_listen = "10.0.0.2:6222"
[[hub.server]]
name = "c"
cluster_listen = "[fd00::3]:6222"
"""


class Site:
    """A topology file and the directory that it is rendered into."""

    def __init__(self, directory: Path) -> None:
        self.file, self.out = directory / "site.toml", directory / "out"

    def write(self, text: str) -> Written:
        """Render this text."""
        self.file.write_text(text)
        return write(read_table(self.file), self.out, OPTIONS)[1]

    def problems(self, text: str) -> list[str]:
        """What is wrong with it; nothing is written then."""
        with pytest.raises(ConfigError) as refused:
            self.write(text)
        assert not self.out.exists()
        return refused.value.problems

    def petiole(self, text: str) -> Result:
        """The command."""
        self.file.write_text(text)
        return CliRunner().invoke(app, ["render", str(self.file), "--out", str(self.out)])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_leaf_without_a_key_is_rendered_and_not_let_in(site: Site) -> None:
    result = site.petiole(SITE)
    assert result.exit_code == 0, result.output
    assert "no key of them: edge-2" in result.output
    hub = tomllib.loads((site.out / "hub.toml").read_text())
    assert hub["leaf"] == [
        {"domain": "edge-1", "key": key_of(1), "classes": ["normal", "bulk"], "tenant": "acme"}
    ]
    text = (site.out / "hub.conf").read_text()
    assert f'nkey: "{key_of(1)}"' in text
    assert "TENANT_acme: {" in text
    assert "edge-2" not in text
    leaf = (site.out / "leaf-edge-2.conf").read_text()
    assert '"$JS.API.CONSUMER.INFO.COMMANDS.plc"' in leaf
    assert '"$JS.API.STREAM.INFO.TEL_edge-2_bulk"' in leaf
    assert {"leaf-edge-1.toml", "README.md"} <= {path.name for path in site.out.iterdir()}


def test_a_forgotten_leaf_is_not_rendered_and_the_hub_keeps_its_keys(site: Site) -> None:
    forgotten = f'[[leaf]]\ndomain = "edge-3"\nrevoked = ["{key_of(3)}"]\nforgotten = true\n'
    result = site.petiole(SITE + forgotten)
    assert result.exit_code == 0, result.output
    assert "edge-3" not in result.output
    hub = tomllib.loads((site.out / "hub.toml").read_text())
    assert hub["leaf"][1]["revoked"] == [key_of(3)]
    assert "edge-3" not in (site.out / "hub.conf").read_text() + (site.out / "README.md").read_text()
    assert not list(site.out.glob("leaf-edge-3*"))
    with pytest.raises(ConfigError, match="is there twice"):
        site.write(SITE.replace(key_of(1), key_of(3)) + forgotten)


def test_rendering_again_writes_only_what_changed_and_names_what_is_of_nobody_any_more(site: Site) -> None:
    first = site.write(SITE)
    assert site.write(SITE).changed == []
    times = {path.name: path.stat().st_mtime_ns for path in site.out.iterdir()}
    done = site.write(SITE.replace('["plc"]', '["plc", "hmi"]'))
    assert done.changed == ["leaf-edge-2.conf", "leaf-edge-2.toml"]
    same = set(first.changed) - set(done.changed)
    assert all((site.out / name).stat().st_mtime_ns == times[name] for name in same)
    (site.out / "leaf-own.conf").write_text("listen: 1\n")
    done = site.write(SITE.replace("edge-2", "edge-9"))
    assert done.stale == ["leaf-edge-2.conf", "leaf-edge-2.toml"]


def test_a_cluster_has_a_configuration_for_each_server_and_one_password(site: Site) -> None:
    site.write(CLUSTER)
    for letter in "abc":
        text = (site.out / f"hub-{letter}.conf").read_text()
        assert f'server_name: "hub-{letter}"' in text
        assert 'include "cluster.conf"' in text
    secret = site.out / "cluster.conf"
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_text()
    password = before.split('password: "')[1].split('"')[0]
    assert before.count(password) == 4
    assert "@[fd00::3]:6222" in before
    others = [path.read_text() for path in site.out.iterdir() if path != secret]
    assert not any(password in text for text in others)
    result = site.petiole(CLUSTER.replace("10.0.0.1", "10.0.0.9"))
    assert password in secret.read_text()
    assert password not in result.output
    assert tomllib.loads((site.out / "hub.toml").read_text())["registrar"]["replicas"] == 3


def test_three_machines_that_run_their_servers_have_a_configuration_each_and_one_password(site: Site) -> None:
    text = CLUSTER.replace("[hub]", "[hub]\nembedded = true")
    site.write(text)
    names = sorted(path.name for path in site.out.iterdir())
    assert names == ["README.md", "cluster.password", "hub-a.toml", "hub-b.toml", "hub-c.toml"]
    secret = site.out / "cluster.password"
    assert secret.stat().st_mode & 0o777 == 0o600
    password = secret.read_text().strip()
    assert len(password) >= 32
    for letter in "abc":
        found = (site.out / f"hub-{letter}.toml").read_text()
        assert password not in found
        table = tomllib.loads(found)
        assert table["registrar"]["replicas"] == 3
        assert table["nats"]["cluster"] == {
            "name": letter,
            "listen": "[fd00::3]:6222" if letter == "c" else f"10.0.0.{'ab'.index(letter) + 1}:6222",
            "routes": ["10.0.0.1:6222", "10.0.0.2:6222", "[fd00::3]:6222"],
            "password_file": "/etc/petiole/cluster.password",
        }
    assert "keys/jobs.nk" in (site.out / "README.md").read_text()
    assert password not in site.petiole(text.replace("10.0.0.1", "10.0.0.9")).output
    assert secret.read_text().strip() == password


TLS = """
cluster_tls_cert = "/etc/petiole/cluster.crt"
cluster_tls_key = "/etc/petiole/cluster.key"
cluster_tls_ca = "/etc/petiole/cluster-ca.crt"
"""


def test_what_passes_between_the_servers_of_a_cluster_is_encrypted_where_the_topology_says_so(
    site: Site,
) -> None:
    site.write(CLUSTER.replace("[hub]", "[hub]" + TLS))
    text = (site.out / "hub-a.conf").read_text()
    for line in (
        'cert_file: "/etc/petiole/cluster.crt"',
        'key_file: "/etc/petiole/cluster.key"',
        'ca_file: "/etc/petiole/cluster-ca.crt"',
        "verify: true",
    ):
        assert line in text.partition("cluster: {")[2].partition("}")[0]
    site.write(CLUSTER.replace("[hub]", "[hub]\nembedded = true" + TLS))
    cluster = tomllib.loads((site.out / "hub-c.toml").read_text())["nats"]["cluster"]
    assert {key for key in cluster if key.startswith("tls")} == {"tls_cert", "tls_key", "tls_ca"}
    for text, said in (
        (
            CLUSTER.replace("[hub]", "[hub]" + TLS.partition("cluster_tls_ca")[0]),
            "hub.cluster_tls_ca: is missing",
        ),
        ("[hub]" + TLS + 'urls = ["nats-leaf://h:7422"]', "hub.cluster_tls_cert: there is one server only"),
    ):
        refused = site.petiole(text)
        assert refused.exit_code == 2
        assert said in refused.output


NONSENSE = f"""
tenants = ["a.b"]
[hub]
urls = ["http://x"]
state_dri = "/x"
[[hub.server]]
name = "a"
listen = "127.0.0.1:7422"
leaf_listen = "127.0.0.1:7422"
[[hub.server]]
name = "a"
cluster_listen = "0.0.0.0:6222"
[hub.config]
domain = "other"
[hub.extra]
accounts = 1
[leaves.config.nats]
seed_file = "/x"
[leaves.remote]
urls = []
[[leaf]]
domain = "edge-1"
key = "{key_of(1)}"
tenant = "nobody"
takes = ["PLANS"]
[[leaf]]
domain = "edge-1"
key = "{key_of(1)}"
[[leaf]]
domain = "hub"
config = {{ input = [{{ type = "htpp" }}] }}
[[leaf]]
key = "UX"
"""


def test_all_that_is_wrong_is_told_at_once_with_its_place(site: Site) -> None:
    problems = site.problems(NONSENSE)
    for place in (
        "tenants:",
        "hub.urls:",
        "hub.state_dri:",
        "hub.server:",
        "hub.server[1].leaf_listen:",
        "hub.server[1].cluster_listen:",
        "hub.server[2].name:",
        "hub.server[2].cluster_listen:",
        "hub.config.domain:",
        "hub.extra.accounts:",
        "leaves.config.nats.seed_file:",
        "leaves.remote.urls:",
        "leaf[1].tenant:",
        "leaf[1].takes:",
        "leaf[2].domain:",
        "leaf[2].key:",
        "leaf[3].domain:",
        "leaf-hub.toml: input[1].type:",
        "leaf[4].domain:",
    ):
        assert any(finding.startswith(place) for finding in problems), (place, problems)


def test_a_private_key_is_refused_and_not_shown(site: Site) -> None:
    seed = nkeys.encode_seed(bytes([7]) * 32, nkeys.PREFIX_BYTE_USER).decode()
    problems = site.problems(SITE.replace(key_of(1), seed))
    assert any(finding.startswith("leaf[1].key: is the seed") for finding in problems)
    result = site.petiole(SITE.replace(key_of(1), seed))
    assert result.exit_code == 2
    assert seed[2:] not in result.output + result.stderr + "".join(problems)


def test_embedded_servers_get_their_additions_through_their_agents(site: Site) -> None:
    text = SITE.replace("[hub]\n", "[hub]\nembedded = true\nmax_file_store = '8GiB'\n")
    text = text.replace(
        "[leaves.config]", "[leaves]\nembedded = true\n[leaves.remote.tls]\nca_file = '/ca'\n[leaves.config]"
    )
    site.write(text)
    assert {path.name for path in site.out.iterdir()} == {
        "README.md",
        "hub.toml",
        "leaf-edge-1.toml",
        "leaf-edge-2.toml",
    }
    leaf = tomllib.loads((site.out / "leaf-edge-1.toml").read_text())
    assert leaf["nats"]["remote"] == {"tls": {"ca_file": "/ca"}}
    assert leaf["nats"]["hub_urls"] == ["nats-leaf://hub.example:7422"]
