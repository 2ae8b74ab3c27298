"""Until when a certificate is valid, read from what OpenSSL made, and judged at a time that is handed in; and
whether that of a hub's server is one that its cluster accepts."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.certificates import Validity, validities, validity
from agent.cli.checks import Level
from agent.cli.checks.certificates import judge, look_at_cluster
from agent.config.server_schema import Cluster
from tests.harness.certificates import Authority

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)
ENDS = BEGINS + timedelta(days=365)


def made(directory: Path, days: int) -> tuple[str, Validity]:
    """A certificate that OpenSSL made, in PEM, and what OpenSSL says of its validity."""
    path = directory / f"{days}.crt"
    name = ["-subj", "/CN=hub.example", "-keyout", str(directory / "one.key"), "-out", str(path)]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-days", str(days), *name], check=True, capture_output=True
    )
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-dates", "-in", path], check=True, capture_output=True, text=True
    )
    begins, ends = (line.partition("=")[2] for line in said.stdout.splitlines())
    return path.read_text(), Validity(
        *(datetime.fromtimestamp(ssl.cert_time_to_seconds(one), UTC) for one in (begins, ends))
    )


def test_the_validity_is_the_one_that_openssl_tells(tmp_path: Path) -> None:
    one, its = made(tmp_path, 365)
    assert validities(one) == [its]
    far, its = made(tmp_path, 30_000)  # from 2050 on the encoding is another one
    assert validities("junk\n" + far) == [its]
    assert its.ends.year > 2100
    assert len(validities(one + far)) == 2


@given(st.binary(max_size=400))
def test_what_is_no_certificate_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(ValueError):
        validity(data)


def test_a_certificate_that_is_cut_off_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(made(tmp_path, 1)[0])
    for length in range(len(whole)):
        with pytest.raises(ValueError):
            validity(whole[:length])


def test_a_file_without_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no certificate"):
        validities("-----BEGIN PRIVATE KEY-----")


@pytest.mark.parametrize(
    ("now", "level", "words"),
    [
        (BEGINS + timedelta(days=100), Level.OK, "is valid until 2027-11-01"),
        (ENDS - timedelta(days=29), Level.WARNING, "expires in 29 days"),
        (ENDS + timedelta(seconds=1), Level.FAILURE, "expired on 2027-11-01 00:00 UTC"),
        (BEGINS - timedelta(hours=2), Level.FAILURE, "is not valid before 2026-11-01 00:00 UTC"),
        (datetime(1970, 1, 1, tzinfo=UTC), Level.FAILURE, "is not valid before"),
        (datetime(2025, 6, 1, tzinfo=UTC), Level.FAILURE, "is not valid before"),
    ],
)
def test_a_certificate_is_judged_at_the_time_that_is_given(now: datetime, level: Level, words: str) -> None:
    finding = judge("hub.crt", Validity(BEGINS, ENDS), now)
    assert (finding.level, words in finding.sentence) == (level, True), finding
    assert bool(finding.remedy) is (level is not Level.OK)


def test_a_certificate_of_some_days_is_told_in_its_last_third_only() -> None:
    short = Validity(BEGINS, BEGINS + timedelta(days=6))
    assert judge("a", short, BEGINS + timedelta(days=3)).level is Level.OK
    assert judge("a", short, BEGINS + timedelta(days=5)).level is Level.WARNING


def of(cert: Path, key: Path, authority: Authority, listen: str = "127.0.0.1:6222") -> Cluster:
    return Cluster(listen=listen, routes=[listen], tls_cert=cert, tls_key=key, tls_ca=authority.file)


def said(table: Cluster) -> str:
    (finding,) = look_at_cluster(table)
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
    assert look_at_cluster(Cluster()) == []
    cert, _ = authority.signed("a", 3600)
    assert look_at_cluster(of(cert, tmp_path / "missing", authority)) == []
