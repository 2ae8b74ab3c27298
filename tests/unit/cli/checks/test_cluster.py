"""Whether the certificate of a hub's server is one that its cluster accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.checks import cluster
from agent.config.schema import Cluster
from tests.harness.certificates import Authority


def of(cert: Path, key: Path, authority: Authority, listen: str = "127.0.0.1:6222") -> Cluster:
    return Cluster(listen=listen, routes=[listen], tls_cert=cert, tls_key=key, tls_ca=authority.file)


def said(table: Cluster) -> str:
    (finding,) = cluster.look(table)
    return f"{finding.level}: {finding.sentence}"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_certificate_of_the_authority_for_its_own_address_is_accepted(authority: Authority) -> None:
    assert said(of(*authority.signed("a", 3600), authority)).startswith("ok: ")


def test_one_of_another_authority_or_for_another_address_or_over_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").signed("a", 3600)
    assert "failure: the hub's other servers do not accept" in said(of(*foreign, authority))
    elsewhere = of(*authority.signed("b", 3600), authority, "127.0.0.2:6222")
    assert "mismatch" in said(elsewhere)
    assert "expired" in said(of(*authority.signed("c", -30), authority))


def test_without_the_files_there_is_nothing_to_say_of_a_handshake(
    authority: Authority, tmp_path: Path
) -> None:
    assert cluster.look(Cluster()) == []
    cert, _ = authority.signed("a", 3600)
    assert cluster.look(of(cert, tmp_path / "missing", authority)) == []
