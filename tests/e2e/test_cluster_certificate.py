"""The certificate that a hub's server shows the others of its cluster is renewed at the same path."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path

from agent.demo.ports import free_port
from agent.server.process import EmbeddedServer
from agent.server.values import ClusterConfig
from tests.harness.certificates import Authority
from tests.harness.servers import make_hub


async def test_a_renewed_certificate_is_shown_without_a_restart_of_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("a", 3600)
    password = tmp_path / "password"
    password.write_text("of-all\n")
    password.chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    cluster = ClusterConfig(listen, routes=(listen,), password_file=password, tls=(cert, key, authority.file))
    config = replace(make_hub(tmp_path / "hub").config, cluster=cluster)
    server = EmbeddedServer(config, tmp_path / "hub")
    try:
        assert await server.start() == "started"
        assert await asyncio.to_thread(shown, cluster) == ssl.PEM_cert_to_DER_cert(cert.read_text())
        assert await server.start() == "adopted"
        authority.signed("a", 7200)
        assert await server.start() == "reloaded"
        assert await asyncio.to_thread(shown, cluster) == ssl.PEM_cert_to_DER_cert(cert.read_text())
    finally:
        server.release()
        await server.stop()


def shown(cluster: ClusterConfig) -> bytes:
    """The certificate that the server shows another one."""
    assert cluster.tls is not None
    cert, key, authority = cluster.tls
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(cert, key)
    host, _, port = cluster.listen.partition(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found
