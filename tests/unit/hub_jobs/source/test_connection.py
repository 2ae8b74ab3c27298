from __future__ import annotations

import base64
import pickle
import socket
import subprocess
import threading
from pathlib import Path

import nkeys
import pytest

from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Denied, SourceApiError, Unreachable, WireError
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_seed, make_stream


def test_a_stream_is_asked_for_its_state(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S", sources=[])
    fill(server, "S.a", [b"x"] * 5)
    info = stream_info(conn, "S")
    assert (info.name, info.first_seq, info.last_seq, info.messages, info.num_deleted) == ("S", 1, 5, 5, 0)
    assert info.domain == "hub"
    assert info.created.startswith("20")
    assert info.bytes > 5


def test_what_jetstream_refuses_has_its_reason(conn: Connection) -> None:
    with pytest.raises(SourceApiError, match=r"STREAM\.INFO\.NONE: stream not found") as caught:
        stream_info(conn, "NONE")
    assert (caught.value.code, caught.value.err_code) == (404, 10059)
    assert pickle.loads(pickle.dumps(caught.value)).err_code == 10059


def test_a_domain_that_is_not_there_is_unreachable(server: PlainServer) -> None:
    with (
        Connection(Server(server.url, api_prefix="$JS.far.API")) as conn,
        pytest.raises(Unreachable, match=r"nothing answers \$JS\.far\.API\.STREAM\.INFO\.S"),
    ):
        stream_info(conn, "S")


def test_the_next_server_of_the_list_is_taken_when_one_is_away(server: PlainServer) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        away = f"nats://127.0.0.1:{one.getsockname()[1]}"
        with Connection(Server(f"{away},{server.url}")) as conn:
            assert conn.api("INFO")
        with pytest.raises(Unreachable, match="no server can be reached"):
            Connection(Server(away))


def test_who_does_not_greet_like_a_server_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            for line in (b"SSH-2.0-OpenSSH\r\n", b""):
                with listening.accept()[0] as one:
                    one.sendall(line)
                    one.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(WireError, match="no NATS server: it said b'SSH"):
            Connection(Server(f"nats://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match=r"no greeting in 0\.2 s"):
            Connection(Server(f"nats://127.0.0.1:{port}"), timeout=0.2)
        thread.join(5)


def test_the_servers_port_for_leaf_nodes_is_named_as_that(tmp_path: Path) -> None:
    port = free_port()
    server = PlainServer(
        tmp_path / "server", f'leafnodes {{ listen: "127.0.0.1:{port}", no_advertise: true }}'
    )
    try:
        server.start()
        with pytest.raises(
            Denied, match=rf"127\.0\.0\.1:{port} is the server's port for leaf nodes; give that"
        ):
            Connection(Server(f"nats://127.0.0.1:{port}"))
    finally:
        server.stop()


def test_an_nkey_opens_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    _, public = make_seed(tmp_path / "seed")
    publish = '["$JS.API.INFO", "$JS.API.STREAM.INFO.S"]'
    allowed = f'publish: {{ allow: {publish} }}, subscribe: {{ allow: ["_INBOX_jobs.>"] }}'
    user = f"{{ nkey: {public}, permissions: {{ {allowed} }} }}"
    users = f"accounts {{ A {{ jetstream: enabled, users: [ {user} ] }} }}"
    server = PlainServer(tmp_path / "server", users)
    identity = Server(server.url, seed_file=str(tmp_path / "seed"))
    try:
        server.start(identity)
        with Connection(identity) as conn:
            with pytest.raises(SourceApiError, match="stream not found"):
                stream_info(conn, "S")
            with pytest.raises(Denied, match=r"Permissions Violation for Publish to .*STREAM\.INFO\.T"):
                stream_info(conn, "T")
        with pytest.raises(Denied, match="Permissions Violation for Subscription"):
            Connection(Server(server.url, seed_file=identity.seed_file, inbox_prefix="_INBOX"))
        with pytest.raises(Denied, match="Authorization Violation"):
            Connection(Server(server.url))
    finally:
        server.stop()


def test_a_seed_comes_from_a_variable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, public = make_seed(tmp_path / "seed")
    monkeypatch.setenv("HUB_SEED", seed + "\n")
    monkeypatch.setenv("HUB_PASSWORD", "right")
    for by_env, users in (
        (Server("nats://x", secret_env="HUB_SEED"), f"{{ nkey: {public} }}"),
        (Server("nats://x", user="u", password_env="HUB_PASSWORD"), "{ user: u, password: right }"),
    ):
        server = PlainServer(tmp_path / f"server-{by_env.user}", f"authorization {{ users: [ {users} ] }}")
        identity = Server(
            server.url, secret_env=by_env.secret_env, user=by_env.user, password_env=by_env.password_env
        )
        try:
            server.start(identity)
            assert b"right" not in pickle.dumps(identity)
            assert seed.encode() not in pickle.dumps(identity)
        finally:
            server.stop()


def test_a_creds_file_gives_its_jwt_and_signs_with_its_seed(tmp_path: Path) -> None:
    seed, _ = make_seed(tmp_path / "seed")
    creds = tmp_path / "user.creds"
    creds.write_text(
        "-----BEGIN NATS USER JWT-----\nhead.body.sign\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    creds.chmod(0o600)
    identity = Server("nats://hub", creds_file=str(creds)).identity("nonce")
    signed = base64.urlsafe_b64decode(identity.pop("sig") + "==")
    assert identity == {"jwt": "head.body.sign"}
    assert nkeys.from_seed(bytearray(seed.encode())).verify(b"nonce", signed)


def test_a_secret_that_is_not_there_or_is_open_to_all_is_refused(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    with pytest.raises(Denied, match="No such file"):
        Server("nats://hub", seed_file=str(seed)).identity("")
    seed.write_text("SUNOTASEED")
    seed.chmod(0o644)
    with pytest.raises(Denied, match="chmod 600"):
        Server("nats://hub", seed_file=str(seed)).identity("")
    seed.chmod(0o600)
    with pytest.raises(Denied, match="holds no NKey seed") as caught:
        Server("nats://hub", seed_file=str(seed)).identity("")
    assert "SUNOTASEED" not in str(caught.value)
    with pytest.raises(Denied, match="PETIOLE_NOT_SET"):
        Server("nats://hub", secret_env="PETIOLE_NOT_SET").identity("")


def test_a_server_that_is_described_wrongly_is_refused() -> None:
    for url in ("http://hub", "nats://", "nats://me:pw@hub", "nats://hub/path", "nats://hub:x"):
        with pytest.raises(ValueError) as caught:
            Server(url)
        assert "pw" not in str(caught.value)
    with pytest.raises(ValueError, match="one of"):
        Server("nats://hub", seed_file="/a", secret_env="B")
    with pytest.raises(ValueError, match="belong together"):
        Server("nats://hub", user="u")


@pytest.mark.parametrize("first", [False, True])
def test_tls_is_spoken_and_the_certificate_checked(tmp_path: Path, first: bool) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *name]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", handshake_first: {str(first).lower()} }}'
    server = PlainServer(tmp_path / "server", tls)
    url = server.url.replace("nats:", "tls:")
    trusted = Server(url, ca_file=str(certificate), tls_first=first)
    try:
        server.start(trusted)
        with Connection(trusted) as conn:
            make_stream(conn, "S")
            assert stream_info(conn, "S").messages == 0
        with pytest.raises(Denied, match="certificate is not trusted"):
            Connection(Server(url, tls_first=first))
    finally:
        server.stop()


def test_tls_that_was_asked_for_is_never_left_out(server: PlainServer) -> None:
    with pytest.raises(Denied, match="TLS is asked for and the server has none"):
        Connection(Server(server.url.replace("nats:", "tls:")))
