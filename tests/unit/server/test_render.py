from __future__ import annotations

import subprocess
from pathlib import Path

import nkeys
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agent.base.files import write_private
from agent.base.nats_server import RenderError, find_binary
from agent.config.keys import check_password, ensure_key, password_line, seed_line
from agent.contract import ContractError, aggregate
from agent.server.render import LINK_INCLUDE, pieces, render
from agent.server.values import HubConfig, LeafConfig, LeafUser, MqttListener, MqttUser, address_of


def key_of(number: int) -> str:
    seed = nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER)
    return bytes(nkeys.from_seed(seed).public_key).decode()


KEY = key_of(0)
HUB = HubConfig(
    server_name="hub-m",
    store_dir=Path("/srv/store"),
    max_file_store=1024,
    registrar=key_of(1),
    registrar_system=key_of(2),
    jobs=key_of(3),
    leaves=(LeafUser("edge-1", key_of(4), ("normal", "alarm")), LeafUser("edge-2", key_of(5))),
)
LEAF = LeafConfig(
    server_name="edge-1-m",
    domain="edge-1",
    store_dir=Path("/srv/store"),
    max_file_store=1024,
    hub_urls=("nats-leaf://hub.example:7422",),
    link_key_file=Path("/srv/keys/link"),
    agent=key_of(1),
    agent_system=key_of(2),
    device=key_of(3),
)


MQTT = structs.replace(
    LEAF,
    mqtt=MqttListener(
        listen="127.0.0.1:1883", users=(MqttUser("plant", Path("plant")), MqttUser("b", Path("b")))
    ),
)


@pytest.mark.parametrize("config", [HUB, LEAF])
def test_both_sides_sync_each_message_notice_a_dead_link_and_stay_on_the_loopback(
    config: HubConfig | LeafConfig,
) -> None:
    text = render(config)
    for line in ('sync_interval: "always"', "max_file_store: 1024", 'ping_interval: "5s"', "ping_max: 2"):
        assert line in text
    assert 'listen: "127.0.0.1:4222"' in text
    assert "password" not in text
    assert "no_auth_user" not in text


def test_the_text_of_many_leaves_comes_in_pieces_of_a_leaf_or_a_permission_each() -> None:
    tenants = [LeafUser(f"edge-{n}", key_of(n), tenant="acme") for n in range(10, 110)]
    own = [LeafUser(f"edge-{n}", key_of(n)) for n in range(110, 210)]
    config = structs.replace(HUB, leaves=(*tenants, *own))
    parts = list(pieces(config))
    assert "".join(parts) == render(config)
    assert len(render(config)) > 100_000
    assert max(map(len, parts)) < 2_000


def test_a_cell_has_an_account_of_which_the_first_may_ask_its_jetstream_and_no_other() -> None:
    moved = LeafUser("edge-3", key_of(6), cell="1")
    config = structs.replace(
        HUB,
        leaves=(*HUB.leaves, moved),
        cells={"1": key_of(7)},
        aggregates=(aggregate(0), aggregate(0, "1")),
    )
    text = render(config)
    of_cell = text[text.index("CELL_1: {") :]
    assert key_of(6) in of_cell
    assert not any(leaf.key in of_cell for leaf in HUB.leaves)
    assert text.count('service: "$JS.API.>"') == 1
    assert text.count('to: "JS.CELL_1.API.>"') == 1
    assert "JS.CELL_1.API.STREAM.MSG.GET.TELEMETRY_1_0" in text
    assert "$KV.petiole_fleet" not in of_cell, "the records of the fleet are in the first cell"
    with pytest.raises(RenderError, match="cell 2, which has no registrar"):
        structs.replace(config, leaves=(LeafUser("edge-3", key_of(6), cell="2"),))
    with pytest.raises(RenderError, match="cannot cross accounts"):
        LeafUser("edge-3", key_of(6), takes=("X",), cell="1")


def test_only_the_hub_may_sync_at_an_interval() -> None:
    assert 'sync_interval: "250ms"' in render(structs.replace(HUB, sync_seconds=0.25))
    assert not hasattr(LEAF, "sync_seconds")


def test_the_seed_stands_in_its_own_file_which_the_text_includes() -> None:
    text = render(LEAF)
    assert f'include "{LINK_INCLUDE}"' in text
    assert "/srv/keys" not in text


def test_a_leaf_has_one_deliver_reset_and_flow_control_subject_a_class() -> None:
    text = render(HUB)
    for cls in ("normal", "alarm"):
        for subject in (
            f"petiole.deliver.edge-1.{cls}.*",
            f"$JS.edge-1.API.CONSUMER.RESET.TEL_edge-1_{cls}.*",
            f"$JS.FC.TEL_edge-1_{cls}.>",
        ):
            assert text.count(f'"{subject}"') == 1


@pytest.mark.parametrize("domain", ["hub", "registrar", "jobs", "device"])
def test_a_domain_that_would_share_an_inbox_with_a_part_of_petiole_is_refused(domain: str) -> None:
    with pytest.raises(RenderError, match="take another"):
        LeafUser(domain, KEY)
    with pytest.raises(RenderError, match="take another"):
        structs.replace(LEAF, domain=domain)


def test_a_domain_is_one_machines() -> None:
    with pytest.raises(RenderError, match="stands twice"):
        structs.replace(HUB, leaves=(LeafUser("a", key_of(6)), LeafUser("a", key_of(7))))


class Compared(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_twice_as_many_leaves_take_no_more_than_twice_as_many_comparisons() -> None:
    counts = []
    for count in (20, 40):
        before = Compared.times
        leaves = (LeafUser(Compared(f"edge-{number}"), key_of(number + 10)) for number in range(count))
        structs.replace(HUB, leaves=tuple(leaves))
        counts.append(Compared.times - before)
    assert counts[1] <= 2 * counts[0]


@pytest.mark.parametrize(
    "key", ["", "SU" + "A" * 56, KEY + "A", KEY.lower(), f"{KEY}\n", 'U"', KEY[:-2] + "AA", "U" + "A" * 55]
)
def test_what_is_not_a_public_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(RenderError, match="key of leaf a is not the public key") as refusal:
        structs.replace(HUB, leaves=(LeafUser("a", key),))
    assert not key or key not in str(refusal.value)


def test_no_two_users_share_a_key() -> None:
    with pytest.raises(RenderError, match="jobs and leaf a have the same key"):
        structs.replace(HUB, leaves=(LeafUser("a", HUB.jobs),))


@pytest.mark.parametrize("listen", ["4222", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", 'x":1', "a b:1"])
def test_what_is_not_an_address_is_refused(listen: str) -> None:
    with pytest.raises(RenderError, match="host:port"):
        structs.replace(HUB, listen=listen)


def test_an_address_is_host_and_port() -> None:
    assert address_of("[::1]:4222") == ("::1", 4222)
    assert address_of("edge.example:1") == ("edge.example", 1)


def test_a_domain_or_class_with_a_wildcard_or_a_dot_is_refused() -> None:
    for domain, cls in (("a.b", "normal"), ("*", "normal"), ("a", ">"), ("a", "x.y")):
        with pytest.raises(ContractError):
            LeafUser(domain, KEY, (cls,))


@settings(deadline=None)
@given(st.text(max_size=40))
def test_text_from_outside_cannot_break_out_of_its_quotes(name: str) -> None:
    try:
        text = render(structs.replace(LEAF, server_name=name))
    except RenderError:
        assert not name.isprintable()
        return
    line = text.splitlines()[1]
    inside = line.removeprefix('server_name: "').removesuffix('"')
    assert inside.replace("\\\\", "").replace('\\"', "").count('"') == 0
    assert inside.replace("\\\\", "").replace('\\"', "").count("\\") == 0


def test_mqtt_devices_are_let_in_only_when_the_listener_is_open_and_may_read_nothing() -> None:
    assert MQTT.mqtt is not None
    closed = structs.replace(MQTT, mqtt=structs.replace(MQTT.mqtt, open=False))
    assert "mqtt: {" in render(closed)
    assert '"plant"' not in render(closed)
    (table,) = [one for one in render(MQTT).split("user:") if one.startswith(' "plant"')]
    assert 'include "mqtt-0.conf"' in table
    assert '"MQTT"' in table
    assert table[table.index("subscribe") :].split("]")[0].split() == ["subscribe:", "{", "deny:", "[", '">"']
    assert "mqtt" not in render(LEAF)


@pytest.mark.parametrize("text", ["", "\n", "a\x07", "x" * 257, "two\nlines", b"\xff"])
def test_a_password_is_one_line_that_can_be_printed(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert "does not hold one line" in str(check_password(file))


def test_a_password_that_others_may_read_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    assert "cannot be read" in str(check_password(file))
    file.write_text("secret\n")
    file.chmod(0o640)
    assert "chmod 600" in str(check_password(file))
    assert "secret" not in str(check_password(file))
    file.chmod(0o600)
    assert check_password(file) is None
    write_private(tmp_path / "include", password_line(file).encode())
    assert (tmp_path / "include").read_text() == 'password: "secret"\n'
    assert (tmp_path / "include").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("config", [HUB, LEAF, MQTT])
def test_the_server_reads_what_is_rendered(config: HubConfig | LeafConfig, tmp_path: Path) -> None:
    odd = structs.replace(config, store_dir=tmp_path / 'a "quoted" \\ path', pid_file=tmp_path / "pid")
    file = tmp_path / "nats-server.conf"
    file.write_text(render(odd))
    ensure_key(tmp_path / "link")
    write_private(tmp_path / LINK_INCLUDE, seed_line("nkey", tmp_path / "link").encode())
    for number in (0, 1):
        (tmp_path / f"mqtt-{number}.conf").write_text('password: "a \\"b\\" $c"\n')
    done = subprocess.run([find_binary(), "-t", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
