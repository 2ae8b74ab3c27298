from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from agent.config import (
    Config,
    ConfigError,
    LeafMember,
    Linger,
    Nats,
    RegistrarConfig,
    Size,
    aggregates,
    aggregates_of,
    cell_of_leaf,
    load,
)
from agent.config.server_checks import check_files
from agent.leaf.inputs import OPTIONS
from tests.unit.server.test_render import key_of

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"
LEAF = 'domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://hub.example:7422"]\n'
HUB = 'domain = "hub"\nrole = "hub"\n'
RESUME = "[link]\nresume_port = 7423\n"
CLUSTER = """
[nats.cluster]
name = "a"
routes = ["10.0.0.1:6222", "10.0.0.2:6222", "10.0.0.3:6222"]
"""
KEY = "UAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABET7"
MISTYPED = KEY.replace("ABET", "BBET")
FILE = '[[input]]\ntype = "file"\npath = "/tmp/x"\n'
USER = f'[[user]]\nname = "a"\nkey = "{KEY}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "petiole.toml"


def file_problems(read: Config) -> list[str]:
    return [str(one) for one in check_files(read)]


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, OPTIONS)
    return caught.value.problems


def config(file: Path, text: str) -> Config:
    file.write_text(text)
    return load(file, OPTIONS)


def test_the_least_configuration_is_a_domain_and_a_hub(file: Path) -> None:
    assert config(file, LEAF) == Config(domain="edge-1", nats=Nats(hub_urls=["nats-leaf://hub.example:7422"]))


def test_a_hub_needs_no_more_than_its_role(file: Path) -> None:
    assert config(file, HUB).role == "hub"


def test_values_are_read_in_their_units(file: Path) -> None:
    read = config(file, LEAF + '[publish]\nlinger = "1.5s"\nbatch_bytes = 1000\nin_flight = "2 MB"\n')
    assert (read.publish.linger, read.publish.batch_bytes, read.publish.in_flight) == (1.5, 1000, 2_000_000)
    assert isinstance(read.publish.linger, Linger)
    assert isinstance(read.publish.in_flight, Size)


def test_options_of_an_input_are_read_by_its_own_schema(file: Path) -> None:
    (read,) = config(file, LEAF + '[[input]]\ntype = "http"\nname = "plant"\nbody = "1MiB"\n').input
    assert (type(read), read.name, read.body, read.class_) == (OPTIONS["http"], "plant", 2**20, "normal")


ALL_AT_ONCE = """
domain = "a.b"
stat_dir = "/x"
[log]
level = "loud"
[nats]
listen = "nowhere"
seed_file = "/nonexistent/seed"
max_file_store = "8 gigs"
[publish]
linger = 5
window = 0
[[class]]
name = "fast"
[[class]]
name = "fast"
[[input]]
type = "http"
bdy = "1MiB"
[[input]]
type = "htp"
"""


def test_all_problems_are_told_at_once_each_with_its_key(file: Path) -> None:
    keys = [one.partition(":")[0] for one in problems(file, ALL_AT_ONCE)]
    assert sorted(keys) == sorted(
        ["domain", "stat_dir", "log.level", "nats.listen", "nats.max_file_store", "nats.hub_urls",
         "publish.linger", "publish.window", "class[2].name", "input[1].bdy",
         "input[1].class", "input[2].type"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[nats]\nhub_urls = ["nats-leaf://h:1"]', "domain: is missing; give text in quotes, such as"),
        (LEAF.replace("edge-1", "a.b"), "a dot is not allowed"),
        (LEAF.replace("edge-1", "hub"), "domain: \"hub\" is the hub's own; give this machine another name"),
        ("statedir = 1\n" + LEAF, "statedir: there is no such key; did you mean state_dir?"),
        (LEAF + 'apps = ["PLC"]', 'nats.apps: app \'PLC\' is not 1 to 32 lower-case letters'),
        (LEAF + 'apps = ["plc", "plc"]', 'nats.apps: "plc" is there twice'),
        (LEAF + 'apps = ["agent"]', 'nats.apps: "agent" is this agent itself; name other programs only'),
        (HUB + '[nats]\napps = ["plc"]', "nats.apps: commands are read on leaves; move it to a leaf"),
        (LEAF + "lisen = 1", "nats.lisen: there is no such key; did you mean listen?"),
        ("log = 1\n" + LEAF, "log: 1 is not a table; write it as [log]"),
        ("class = 1\n" + LEAF, "class: 1 is not a list of tables; write each as [[class]]"),
        ("input = {}\n" + LEAF, "input: {} is not a list of tables; write each as [[input]]"),
        (LEAF + '[log]\nlevel = "loud"', 'one of "debug", "info", "warning", "error"'),
        (LEAF + "[publish]\nlinger = 5", 'publish.linger: 5 cannot be used; give a duration of at most 5 s'),
        (LEAF + '[publish]\nlinger = "5"', 'such as "100ms"'),
        (LEAF + '[publish]\nlinger = "-1s"', 'of at most 5 s, such as "100ms", or "0s"'),
        (LEAF + '[publish]\nlinger = "1e3s"', "a duration of at most 5 s"),
        (LEAF + '[publish]\nlinger = "5001ms"', "a duration of at most 5 s"),
        (LEAF + '[publish]\ndrain = "0s"', "a duration above 0"),
        (LEAF + '[publish]\ndrain = "999d"', "a duration above 0"),
        (LEAF + '[publish]\nbatches_per_second = 0', "a whole number of at least 1"),
        (LEAF + '[publish]\nbatch_bytes = "1 mb"', 'batch_bytes: "1 mb" cannot be used; give a size such as'),
        (LEAF + "[publish]\nbatch_bytes = 0", "give a size such as"),
        (LEAF + "[publish]\nbatch_bytes = true", "give a size such as"),
        (LEAF + "[publish]\nbatch_bytes = 1.5", "give a size such as"),
        (LEAF + "[publish]\nwindow = 0", "a whole number of at least 1"),
        (LEAF + '[publish]\nwindow = "64"', "a whole number of at least 1"),
        (LEAF + "[publish]\nwindow = 1025", "a whole number of at least 1 and at most 1024"),
        (LEAF + "[publish]\nwindow = true", "a whole number of at least 1"),
        (LEAF + '[publish]\nbatch_bytes = "17MiB"', "publish.batch_bytes: 17825792 bytes are more than"),
        (LEAF + '[publish]\nin_flight = "1kB"', "publish.in_flight: 1000 bytes do not hold one batch"),
        ("state_dir = 1\n" + LEAF, "state_dir: 1 cannot be used; give a path in quotes"),
        ('state_dir = ""\n' + LEAF, "a path in quotes"),
        ('domain = "edge-1"', "nats.hub_urls: is empty, so the leaf has no hub to dial"),
        (LEAF.replace("nats-leaf", "http"), 'nats.hub_urls: "http://hub.example:7422" is not a server'),
        (LEAF.replace(":7422", ""), "is not a server"),
        (LEAF.replace(":7422", ":x"), "is not a server"),
        (LEAF + 'max_file_store = "1MiB"', "nats.max_file_store: 1048576 bytes do not hold the classes"),
        (HUB + '[registrar]\nmax_bytes = "8GiB"', "do not hold 1 aggregates of 8589934592"),
        (HUB + "[registrar]\naggregates = 2", "do not hold 2 aggregates of 4294967296"),
        (HUB + "[registrar]\nreplicas = 3", "registrar.replicas: an embedded server stands alone"),
        (LEAF + CLUSTER, "nats.cluster: a leaf's server stands alone"),
        (HUB + CLUSTER + "[registrar]\nreplicas = 3", "nats.cluster.password_file: is missing"),
        ("class = []\n" + LEAF, "class: no class is left"),
        (LEAF + '[[class]]\nname = "Fast"', "class[1].name: class 'Fast' is not 1 to 16 lower"),
        (LEAF + '[[class]]\n[[class]]', 'class[2].name: "normal" is there twice'),
        (LEAF + '[[class]]\ndiscard = "oldest"', "class[1].discard"),
        (LEAF + "[[input]]", "input[1].type: is missing; give one of "),
        (LEAF + '[[input]]\ntype = "htp"', 'input[1].type: "htp" is not a type of input; give one of '),
        (LEAF + "[[input]]\ntype = 1", "input[1].type: 1 is not a type of input"),
        (LEAF + '[[input]]\ntype = "http"\nname = "A"', "input[1].name: input 'A' is not"),
        (LEAF + '[[input]]\ntype = "http"\nclass = "fast"', 'input[1].class: there is no class "fast"'),
        (LEAF + '[[input]]\ntype = "http"\nlisten = "8080"', 'input[1].listen: "8080" is not an address'),
        (LEAF + '[admin]\nlisten = "0.0.0.0:9464"', "would show them everything; give it a token_file"),
        (LEAF + '[admin]\ntls_cert = "a.pem"', "admin.tls_key: is missing"),
        (LEAF + '[[input]]\ntype = "http"\nlisten = "127.0.0.1:9464"', "port 9464 is also that of admin"),
        (LEAF + '[[input]]\ntype = "http"\nlisten = "0.0.0.0:4222"', "port 4222 is also that of nats.listen"),
        (LEAF + f'[[leaf]]\ndomain = "x"\nkey = "{KEY}"', "leaf: only the hub lets leaves in"),
        (HUB + f'[[leaf]]\ndomain = "x"\nkey = "{KEY}"\nforgotten = true', "forgotten: stands beside a key"),
        (HUB + f'[[leaf]]\ndomain = "x"\nrevoked = ["{KEY}"]\nforgotten = true\n'
         f'[[leaf]]\ndomain = "y"\nkey = "{KEY}"', f'leaf[2].key: "{KEY}" is there twice'),
        (HUB + f'[[leaf]]\ndomain = "x"\nrevoked = ["{KEY}"]\n[[user]]\nname = "y"\nkey = "{KEY}"',
         f'user[1].key: "{KEY}" is there twice'),
        (LEAF + '[[mirror]]\nof = "A"', "mirror[1].name: is missing"),
        (LEAF + '[[mirror]]\nname = "COMMANDS"', "is the name of a stream of another kind"),
        (LEAF + '[[mirror]]\nname = "TEL_x"', "is the name of a stream of another kind"),
        (LEAF + '[[mirror]]\nname = "A"\n' * 2, 'mirror[2].name: "A" is there twice'),
        (LEAF + '[[mirror]]\nname = "A"\ndomain = "edge-1"', 'mirror[1].of: "A" would take from itself'),
        (LEAF + '[[mirror]]\nname = "A"\ndomain = "a.b"', "mirror[1].domain: domain 'a.b' is not"),
        (LEAF + '[[mirror]]\nname = "A"\ndomain = "x"\napi = "J"', "mirror[1].api: is beside domain"),
        (LEAF + '[[mirror]]\nname = "A"\napi = "$JS.API"', "is not a prefix of another JetStream"),
        (LEAF + '[[mirror]]\nname = "A"\napi = "$JS.edge-1.API"', "api: is this domain's own"),
        (LEAF + '[[mirror]]\nname = "A"\ndeliver = "a.>"', 'mirror[1].deliver: "a.>" is not a prefix'),
        (LEAF + '[[mirror]]\nname = "A"\nstart_sequence = 0', "a whole number of at least 1"),
        (LEAF + '[[mirror]]\nname = "A"\nstart_time = "now"', "give a time such as 2026-11-21T06:00:00Z"),
        (LEAF + '[[mirror]]\nname = "A"\nstart_time = 2026-11-21T06:00:00', "has no time zone"),
        (LEAF + '[[mirror]]\nname = "A"\nfilter = "a b"', 'mirror[1].filter: "a b" is not a subject'),
        (LEAF + '[[mirror]]\nname = "A"\nfilter = "a"\ntransforms = [{src = "a", dest = "b"}]',
         "mirror[1].filter: is beside transforms"),
        (LEAF + '[[mirror]]\nname = "A"\ntransforms = [{src = "a"}]', "transforms[1].dest: is missing"),
        (LEAF + '[[mirror]]\nname = "A"\nmax_bytes = "9GiB"', "do not hold the classes, the declared links"),
        (LEAF + '[[source]]\nname = "A"', "source[1].from: is empty; write [[source.from]]"),
        (LEAF + '[[source]]\nname = "A"\n[[source.from]]', "source[1].from[1].of: is missing"),
        (LEAF + '[[rule]]\nmetric = "a"', "rule[1]: does nothing; give one of class, drop, tags, deadband"),
        (LEAF + '[[rule]]\ndrop = true\nclass = "normal"', "rule[1]: drops what it would also change"),
        (LEAF + '[[rule]]\nclass = "fast"', 'rule[1].class: there is no class "fast"; declare it'),
        (LEAF + '[[rule]]\ndrop = true\nmetric = ["a", "!"]', "rule[1].metric: holds an empty pattern"),
        (LEAF + '[[rule]]\ndrop = true\nmetric = 1', "rule[1].metric: 1 cannot be used; give text in quotes"),
        (LEAF + '[[rule]]\ndrop = true\nname = "A b"', 'rule[1].name: "A b" is not 1 to 32 lower-case'),
        (LEAF + '[[rule]]\ndrop = true\nname = "a"\n' * 2, 'rule[2].name: "a" is there twice'),
        (LEAF + '[[rule]]\ndrop = true\nafter = "1s"', "rule[1].after: has no deadband to go with"),
        (
            LEAF + '[[rule]]\ndeadband = 1\nsample = "1m"',
            "rule[1].sample: stands beside a deadband; keep the one that is meant",
        ),
        (LEAF + '[[rule]]\ntags = { "a\\n" = "b" }', "rule[1].tags: a tag's name holds a control character"),
        (LEAF + '[[input]]\ntype = "nats"', "[1].subjects: is missing; write each as [[input.subjects]]"),
        (LEAF + "[[rule]]\ndrop = true\n" * 101, "rule: 101 rules are more than 100; let one have several"),
        (HUB + "[[rule]]\ndrop = true", "rule: the hub takes in no readings; move it to a leaf"),
        (HUB + '[[source]]\nname = "A"\n[[source.from]]\nof = "B"', "source[1].from[1].domain: is missing"),
        (HUB + f'[[leaf]]\ndomain = "x"\nkey = "{KEY}"\ntakes = ["A.*"]', 'leaf[1].takes: "A.*" cannot be a'),
        (HUB.replace('"hub"\nr', '"x"\nr'), 'domain: "x" cannot be the hub\'s; write domain = "hub"'),
        (HUB + '[nats]\nhub_urls = ["nats-leaf://h:1"]', "nats.hub_urls: the hub dials no other server"),
        (HUB + '[[input]]\ntype = "http"', "input: the hub takes in no readings; move it to a leaf"),
        (LEAF + '[[user]]\nname = "a"', "user[1].key: is missing; make a key with: petiole user add a"),
        (LEAF + USER + 'reads = ["x"]', 'reads: there is no class "x"; take one of'),
        (HUB + USER + 'reads = ["x"]', 'there is no aggregate "x"; take one of: TEL'),
        (HUB + USER + 'linked = true', "user[1].linked: the hub dials no other"),
        (LEAF + USER + 'max_bytes = "9GiB"', "nats.max_file_store: 8589934592 bytes"),
        (HUB + '[nats]\nlisten = "127.0.0.1:7422"', "nats.leaf_listen: port 7422 is also that of nats"),
        (HUB + '[[leaf]]\ndomain = "x"', "leaf[1].key: is missing"),
        (HUB + '[[leaf]]\ndomain = "x"\nkey = "SU"', 'leaf[1].key: "SU" is not a public user key'),
        (HUB + f'[[leaf]]\ndomain = "hub"\nkey = "{KEY}"', "leaf[1].domain: \"hub\" is the hub's own"),
        (LEAF + '[link]\nwindows = ["22:00-06:00", "noon"]', "link.windows: 'noon' is not a window"),
        (HUB + '[link]\nwindows = ["22:00-06:00"]', "link.windows: the hub dials no other server"),
        (HUB + "[link]\nresume_port = 7423", "link.resume_port: the hub dials no other server"),
        (LEAF + 'resume_listen = "127.0.0.1:7423"', "nats.resume_listen: stands without link.resume_port"),
        (LEAF + "[link]\nresume_port = 0", "link.resume_port: 0 cannot be used"),
        (LEAF + '[nats.remote.proxy]\nurl = "http://p:1"\n' + RESUME, "cannot be with nats.remote.proxy"),
        (LEAF.replace("nats-leaf", "wss") + RESUME, 'cannot be with the websocket "wss://hub.example:7422"'),
        (LEAF + 'resume_listen = "0.0.0.0:7423"\n' + RESUME, '"0.0.0.0:7423" is open to other machines'),
        (LEAF + "[link]\nresume_port = 4222", "nats.resume_listen: port 4222 is also that of nats.listen"),
        (LEAF + "[link]\nresume_port = 7422", "link.resume_port: is the port of the hub's server in"),
        (LEAF + '[[input]]\ntype = "http"\nname = "agent"', '"agent" is the agent\'s own'),
        (LEAF + '[[input]]\ntype = "http"\nname = "commands"', '"commands" is the agent\'s own'),
        (HUB + f'[[leaf]]\ndomain = "x"\nkey = "{MISTYPED}"', "leaf[1].key: "),
        (LEAF + 'server = "external"', "nats.seed_file: is missing"),
        (HUB + '[nats]\nserver = "external"', "nats.seed_file: is missing"),
        (LEAF + FILE + 'ack = "accepted"', 'input[1].ack: "accepted" would lose'),
        (LEAF + FILE + 'ack = "sent"', 'one of "accepted", "stored", "hub"'),
    ],
)  # fmt: skip
def test_each_mistake_is_one_problem_with_what_to_do(file: Path, text: str, problem: str) -> None:
    (found,) = problems(file, text)
    assert problem in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("domain = 1", "domain: 1 cannot be used; give text in quotes"),
        (HUB + CLUSTER, "registrar.replicas: is 1, so that the agents"),
        (HUB + CLUSTER.replace(', "10.0.0.3:6222"', ""), "nats.cluster.routes: 2 servers cannot outvote"),
        (HUB + CLUSTER.replace("10.0.0.3:6222", "c"), 'nats.cluster.routes: "c" is not an address'),
        (HUB + CLUSTER.replace("name", 'listen = ":0:"\nname'), 'nats.cluster.listen: ":0:" is not'),
        (HUB + CLUSTER.replace('"a"', '"a.b"'), "nats.cluster.name: "),
        (HUB + CLUSTER + 'tls_cert = "c"\ntls_ca = "a"', "nats.cluster.tls_key: is missing"),
        (HUB + '[nats]\nserver = "external"' + CLUSTER.replace("name", "#"), "nats.cluster.name: is missing"),
        (
            LEAF + "".join(f'[[class]]\nname = "c{number}"\n' for number in range(257)),
            "class: 257 classes are declared, a leaf announces 256 at most",
        ),
        (LEAF + '[[input]]\ntype = "http"\n' * 2, 'input[2].name: "http" is there twice'),
        (LEAF + '[[mirror]]\nname = "A.B"', 'mirror[1].name: "A.B" cannot be a stream'),
        (LEAF + '[[map]]\nname = "m"\nvalue = "v|"', "map[1].value: 'v|' is no path of JMESPath"),
        (LEAF + '[[map]]\nname = "m"\n' * 2, 'map[2].name: "m" is there twice'),
        (LEAF + '[[map]]\nname = "m"\nvalu = "v"', "map[1].valu: there is no such key; did you mean value"),
        (LEAF + '[[input]]\ntype = "http"\nmap = "m"', 'input[1].map: there is no [[map]] "m"; write'),
        (LEAF + '[[input]]\ntype = "http"\npreset = "chirpstak"', "did you mean chirpstack?"),
        (HUB + '[[map]]\nname = "m"', "map: the hub takes in no readings; move it to a leaf"),
        (LEAF + "[[rule]]\ndeadband = -1", "rule[1].deadband: -1 cannot be used; give a number of at"),
        (LEAF + "[[rule]]\ntags = { a = 1 }", 'rule[1].tags: {"a": 1} cannot be used; give a table'),
        (LEAF + '[[input]]\ntype = "nats"', "[1].subjects: is missing; write each as [[input.subjects]]"),
        (LEAF + '[[input]]\ntype = "mqtt"\ntopics = 1', "write each as [[input.topics]]"),
        (LEAF + '[[input]]\ntype = "mqtt"', 'url: is missing; give text in quotes, such as "mqtt://127.0.0.1'),
        (LEAF + '[[input]]\ntype = "mqtt"\nserver = "x"', "server: there is no such key; did you mean url?"),
        (LEAF + '[[user]]\nname = "a_b"', "user[1].name: user 'a_b' is not 1 to 32 lower-case letters"),
        (LEAF + USER * 2, 'user[2].name: "a" is there twice'),
        (HUB + f'[[leaf]]\ndomain = "x"\nkey = "{KEY}"\nusers.a = "SU"', 'users.a: there is no user "a"'),
        (HUB + f'[[leaf]]\ndomain = "x"\nkey = "{KEY}"\n' * 2, 'leaf[2].domain: "x" is there twice'),
        (LEAF + 'server = "external"\n' + RESUME, "link.resume_port: is for an embedded server only"),
        (HUB + '[nats]\nserver = "external"\nresume_listen = "[::]:7423"', "nats.resume_listen: is for an"),
        (LEAF + 'server = "external"\n[link]\nwindows = ["22:00-06:00"]', "link.windows: is for an"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_beside_what_follows_from_it(file: Path, text: str, problem: str) -> None:
    told = problems(file, text)
    assert any(problem in one for one in told), told


def test_a_link_needs_no_more_than_a_name_on_a_leaf(file: Path) -> None:
    read = config(file, LEAF + '[[mirror]]\nname = "A"\n[[source]]\nname = "B"\n[[source.from]]\nof = "B"\n')
    assert (read.mirror[0].name, read.source[0].name) == ("A", "B")


def test_a_table_that_could_not_be_read_does_not_shift_the_numbers_of_the_others(file: Path) -> None:
    told = problems(file, LEAF + '[[input]]\ntype = "x"\n[[input]]\ntype = "http"\nclass = "none"\n')
    assert any(one.startswith("input[2].class") for one in told)


def test_a_seed_must_be_there_and_its_owners_alone(file: Path, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    read = config(file, LEAF + f'seed_file = "{seed}"\n')
    assert "cannot be read" in file_problems(read)[0]
    seed.write_text("SUA")
    for mode in (0o644, 0o640, 0o660):
        seed.chmod(mode)
        assert file_problems(read) == [
            f"nats.seed_file: {seed} may be read by others (mode {mode:04o}); run chmod 600 {seed}"
        ]
    for mode in (0o600, 0o400):
        seed.chmod(mode)
        assert file_problems(read) == []


def test_a_seed_that_is_a_directory_or_a_pipe_is_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    read = config(file, LEAF + f'seed_file = "{tmp_path / "keys"}"\n')
    assert "is not a regular file" in file_problems(read)[0]
    (tmp_path / "keys").rmdir()
    os.mkfifo(tmp_path / "keys", 0o600)
    assert "is not a regular file" in file_problems(read)[0], "and it is not waited for a writer"


@pytest.mark.parametrize(
    ("name", "said"),
    [("none.toml", r"none\.toml: cannot be read \(No such file"), (".", "cannot be read")],
)
def test_a_file_that_is_missing_or_a_directory_is_told(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / name, OPTIONS)


def test_broken_toml_is_told_with_its_line(file: Path) -> None:
    (told,) = problems(file, 'domain = "x"\nrole = \n')
    assert "line 2" in told


def test_a_file_that_is_not_utf8_is_refused(file: Path) -> None:
    file.write_bytes(b'domain = "\xff"')
    with pytest.raises(ConfigError, match="byte 10 is not UTF-8"):
        load(file, OPTIONS)


def uncommented() -> str:
    """The example with the keys and tables that it only mentions."""
    return re.sub(r"^# (\[|[a-z_]+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_each_cell_has_aggregates_of_its_own_also_when_its_leaves_are_forgotten() -> None:
    leaves = [LeafMember(f"edge-{number}", "U", cell=number // 3) for number in range(5)]
    leaves.append(LeafMember("gone", revoked=["U"], forgotten=True, cell=7))
    config = Config("hub", leaf=leaves, registrar=RegistrarConfig(max_sources=2, aggregates=3))
    assert aggregates(config) == (*(f"TELEMETRY_{n}" for n in range(3)), "TELEMETRY_1_0", "TELEMETRY_7_0")
    assert aggregates_of(config, "1") == ("TELEMETRY_1_0",)
    assert [cell_of_leaf(config, domain) for domain in ("edge-0", "edge-4", "gone", "none")] == [
        "",
        "1",
        "7",
        "",
    ]


def struct_of(one: FieldInfo) -> type[Struct] | None:
    """The Struct that a field holds, alone or in a list."""
    for kind in (one.type, *get_args(one.type)):
        if isinstance(kind, type) and issubclass(kind, Struct):
            return kind
    return None


def missing(kind: type[Struct], table: dict[str, Any], place: str) -> list[str]:
    """Keys of a Struct that a table leaves out, down to the last."""
    found = [f"{place}{one.encode_name}" for one in fields(kind) if one.encode_name not in table]
    for one in fields(kind):
        inner, value = struct_of(one), table.get(one.encode_name)
        # A kind of record has the keys of its map, which are shown there.
        if inner is not None and value is not None and not issubclass(kind, inner):
            row = (
                {key: of for each in value for key, of in each.items()} if isinstance(value, list) else value
            )
            found += missing(inner, row, f"{place}{one.encode_name}.")
    return found


def test_the_example_holds_every_key() -> None:
    table = tomllib.loads(uncommented())
    assert missing(Config, table, "") == []
    tables = {one["type"]: one for one in table["input"]}
    for kind, options in OPTIONS.items():
        assert missing(options, tables[kind], f"input {kind}: ") == []


def test_the_example_loads_and_shows_the_defaults() -> None:
    read = load(EXAMPLE, OPTIONS)
    shown = read.input
    read.input = []
    assert read == Config(domain=read.domain, nats=Nats(hub_urls=read.nats.hub_urls))
    for one in shown:
        required = {field.name: getattr(one, field.name) for field in fields(one) if field.required}
        assert one == type(one)(**required)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_example_shows_the_defaults_of_each_input(file: Path, kind: str) -> None:
    tables = re.split(r"^(?=\[\[input\]\])", uncommented(), flags=re.MULTILINE)[1:]
    (text,) = [one for one in tables if f'type = "{kind}"' in one]
    (read,) = config(file, LEAF + '[[map]]\nname = "press"\n' + text).input
    for field in fields(read):
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        # What is not given by default is shown by an example.
        assert field.required or default in (None, []) or getattr(read, field.name) == default, field.name


MQTT = """
[nats.mqtt]
listen = "127.0.0.1:4222"
tls_cert = "/nonexistent"
[[nats.mqtt.users]]
name = "a b"
password_file = "/nonexistent"
[[nats.mqtt.users]]
name = "a b"
"""


def test_a_listener_for_devices_is_checked_down_to_its_files(file: Path) -> None:
    told = problems(file, LEAF + MQTT)
    assert [one.partition(":")[0] for one in told] == [
        "nats.mqtt.users[2].password_file",
        "nats.mqtt.listen",
        "nats.mqtt.tls_cert",
        "nats.mqtt.users[1].name",
    ]
    secret = file.with_name("password")
    good = f'[[nats.mqtt.users]]\nname = "plant"\npassword_file = "{secret}"\n'
    assert file_problems(config(file, LEAF + good))[0].startswith("nats.mqtt.users[1].password_file: ")
    secret.touch(0o600)
    secret.write_text("x")
    assert file_problems(config(file, LEAF + good)) == []
    tls = f'[nats.mqtt]\ntls_cert = "{secret}"\ntls_key = "/nonexistent"\n'
    assert [one.partition(":")[0] for one in file_problems(config(file, LEAF + tls))] == ["nats.mqtt.tls_key"]
    assert config(file, LEAF + good).nats.mqtt.on
    assert not config(file, LEAF).nats.mqtt.on
    assert "on leaves" in "".join(problems(file, HUB + good))
    assert "embedded server only" in "".join(problems(file, LEAF + 'server = "external"\n' + good))


@pytest.mark.parametrize("server", ["embedded", "external"])
def test_the_password_of_a_cluster_is_read_for_an_embedded_server_alone(file: Path, server: str) -> None:
    seed = file.with_name("seed")
    seed.touch(0o600)
    nats = f'[registrar]\nreplicas = 3\n[nats]\nserver = "{server}"\nseed_file = "{seed}"\n'
    found = file_problems(config(file, HUB + nats + CLUSTER + 'password_file = "/nonexistent"\n'))
    assert [one.partition(":")[0] for one in found] == (
        ["nats.cluster.password_file"] if server == "embedded" else []
    )


def test_a_thin_link_is_pinged_and_announced_over_less_often(file: Path) -> None:
    normal, thin = config(file, LEAF).link, config(file, LEAF + '[link]\nprofile = "thin"\n').link
    relayed = config(file, LEAF + "[link]\nresume_port = 7423\n").link
    assert relayed.ping_seconds == thin.ping_seconds > normal.ping_seconds
    assert thin.announce_seconds > normal.announce_seconds


@pytest.mark.parametrize(
    ("link", "cls", "seconds"),
    [
        ("", "", 1200.0),
        ('profile = "thin"', "", 60.0),
        ('profile = "thin"\nrest_after = "1h"', "", 3600.0),
        ('rest_after = "0s"', "", None),
        ('rest_after = "0s"', 'rest_after = "10s"', 10.0),
        ('profile = "thin"', 'rest_after = "0s"', None),
    ],
)
def test_a_class_rests_by_its_own_time_or_that_of_the_link_or_of_the_profile(
    file: Path, link: str, cls: str, seconds: float | None
) -> None:
    read = config(file, f'{LEAF}[link]\n{link}\n[[class]]\nname = "normal"\n{cls}\n')
    assert read.link.rest_seconds(read.class_[0].rest_after) == seconds


def test_a_class_cannot_rest_sooner_than_its_leaf_is_announced(file: Path) -> None:
    (sentence,) = problems(file, LEAF + '[link]\nrest_after = "9s"\n')
    assert 'a duration of at least 10 s, such as "20m", or "0s" for never' in sentence


@pytest.mark.parametrize("domain", ["registrar", "jobs", "device"])
def test_a_domain_that_names_a_part_of_the_product_is_told_with_all_else(file: Path, domain: str) -> None:
    told = problems(file, LEAF.replace("edge-1", domain) + '[publish]\nlinger = "soon"\n')
    assert any(f'domain: "{domain}" is the name of a part' in one for one in told)
    assert any("linger" in one for one in told)
    (told_of_leaf,) = problems(file, HUB + f'[[leaf]]\ndomain = "{domain}"\nkey = "{KEY}"\n')
    assert "leaf[1].domain" in told_of_leaf


def test_a_source_that_keeps_what_is_not_stored_may_wait_for_the_hub(file: Path) -> None:
    assert config(file, LEAF + FILE + 'ack = "hub"').input[0].ack == "hub"


def test_of_a_forgotten_leaf_or_user_the_keys_alone_are_known(tmp_path: Path) -> None:
    path, row = tmp_path / "hub.toml", "forgotten = true\n"
    leaf = f'[[leaf]]\ndomain = "x"\nrevoked = ["{KEY}"]\n{row}'
    path.write_text(f'{HUB}{leaf}[[user]]\nname = "y"\nrevoked = ["{key_of(1)}"]\n{row}')
    config = load(path, OPTIONS)
    assert (config.leaves, config.users) == ([], [])
    assert (config.leaf[0].revoked, config.user[0].revoked) == ([KEY], [key_of(1)])
