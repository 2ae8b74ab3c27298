"""The certificates that a running agent watches: which, until when, and that a changed file is read again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.base.metrics import Metrics
from agent.config import Admin, Config
from agent.leaf.inputs.opcua import OpcuaOptions
from agent.process.certificates import CertificateWatch
from tests.harness.certificates import Authority

DAY = 86_400.0


def value(metrics: Metrics, kind: str, certificate: str) -> float | None:
    name = f"petiole_certificate_{kind}_timestamp_seconds"
    return metrics.registry.get_sample_value(name, {"certificate": certificate})


async def test_all_certificates_are_watched_and_read_again_when_they_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("admin", 90 * DAY)
    mine, _ = authority.signed("plc", 90 * DAY)
    der = tmp_path / "plc.der"
    shown = x509.load_pem_x509_certificate(mine.read_bytes()).public_bytes(Encoding.DER)
    der.write_bytes(shown)
    config = Config(domain="edge-1", state_dir=tmp_path, admin=Admin(tls_cert=cert, tls_key=key))
    config.nats.remote = {"tls": {"ca_file": str(tmp_path / "gone.pem")}}
    config.input = [OpcuaOptions(url="opc.tcp://127.0.0.1:4840", nodes=[], cert=der)]
    metrics, now = Metrics(), datetime.now(UTC)
    watch = CertificateWatch(config, metrics, lambda: {"tls://hub:7422": shown})
    await watch.look(now)
    name = f"tls_cert of admin ({cert})"
    ends = value(metrics, "expiry", name)
    assert ends is not None
    assert abs(ends - now.timestamp() - 90 * DAY) < 60
    for other in (f"cert of input opcua ({der})", "shown by tls://hub:7422"):
        assert abs((value(metrics, "expiry", other) or 0) - ends) < 60
    assert value(metrics, "expiry", f"nats.remote.tls.ca_file ({tmp_path}/gone.pem)") == 0
    (row,) = watch.rows()
    assert (row["state"], row["why"]) == ("certificate not read", "No such file or directory")
    authority.signed("admin", 2 * DAY)
    await watch.look(now)
    assert abs((value(metrics, "expiry", name) or 0) - now.timestamp() - 2 * DAY) < 60, "the new file"
    config.input = []
    await watch.look(now)
    assert value(metrics, "expiry", f"cert of input opcua ({der})") is None, "it is named no more"


async def test_a_certificate_is_called_what_it_is_from_its_renewal_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("admin", 90 * DAY)
    early, _ = authority.signed("early", 90 * DAY, begins=DAY)
    config = Config(domain="edge-1", state_dir=tmp_path, admin=Admin(tls_cert=cert, tls_key=key))
    watch = CertificateWatch(config, metrics := Metrics(), dict)
    await watch.look(datetime.now(UTC))
    assert watch.rows() == []
    renewal = value(metrics, "renewal", f"tls_cert of admin ({cert})")
    assert renewal is not None
    assert (
        timedelta(days=59) < timedelta(seconds=renewal - datetime.now(UTC).timestamp()) < timedelta(days=61)
    )
    for path, state in (
        (authority.signed("short", 60.0, begins=-3600.0)[0], "certificate expires soon"),
        (authority.signed("over", -60.0, begins=-3600.0)[0], "certificate expired"),
        (early, "certificate not yet valid"),
    ):
        config.admin.tls_cert = path
        await watch.look(datetime.now(UTC))
        assert [row["state"] for row in watch.rows()] == [state]
    begins = value(metrics, "begin", f"tls_cert of admin ({early})")
    assert begins is not None
    assert abs(begins - datetime.now(UTC).timestamp() - DAY) < 60
