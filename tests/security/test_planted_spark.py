"""What Spark, a lake in an object store and the reports keep of whoever has a secret: plans, event log,
checkpoints, errors, logs, tables. In `make test SUITE=security`; what a single read and job keep is looked at
in tests/spark."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nkeys
import pytest
from pyarrow import fs

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.tables.places import ObjectPath
from tests.harness.cloud_stores import KEY, LAKES, cloud_store
from tests.harness.object_store import BUCKET, imitation
from tests.security.hidden import files_below, leaked
from tests.security.test_planted import WHOLE
from tests.spark.conftest import spark as spark
from tests.spark.kept import events, plans
from tests.unit.hub_jobs.rows import batch_headers
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM, VARIABLE = "TELEMETRY_0", "PETIOLE_PLANTED_SEED"
LINE = b'{"metric":"m","value":1}\n'
JWT = "eyJ0eXAiOiJKV1QifQ.pl4ntedJWTpl4ntedJWT.pl4nted_signature"
WAIT_SECONDS = 300


def seed() -> str:
    """A new user's seed."""
    return str(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER), "ascii")


@dataclass
class Keyed:
    """A server that knows one key, and secrets of which only where they are is ever told."""

    server: PlainServer
    planted: dict[str, str]
    files: dict[str, Path]

    def ways(self) -> dict[str, dict[str, str]]:
        """Every way to name a secret. The server refuses an unknown key, and takes a JWT for nobody's, whom
        it lets in; what is no key at all is refused before."""
        return {
            "an unknown key": {"seedFile": str(self.files["unknown"])},
            "seedFile": {"seedFile": str(self.files["seed"])},
            "secretEnv": {"secretEnv": VARIABLE},
            "creds": {"creds": str(self.files["creds"])},
            "no key": {"seedFile": str(self.files["none"])},
        }


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyed]:
    """It holds three batches of ten readings."""
    planted = {
        "seed": seed(),
        "unknown": seed(),
        "of the creds": seed(),
        "jwt": JWT,
        "none": "pl4nted/no+S33D",
    }
    planted |= {"store": "pl4nted/store+S3CRET==", "session": "pl4nted/session+T0KEN=="}
    texts = {name: planted[name] for name in ("seed", "unknown", "none")}
    texts["creds"] = (
        f"-----BEGIN NATS USER JWT-----\n{JWT}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{planted['of the creds']}\n------END USER NKEY SEED------\n"
    )
    files = {name: tmp_path / f"{name}.secret" for name in texts}
    for name, path in files.items():
        path.touch(0o600)
        path.write_text(texts[name])
    monkeypatch.setenv(VARIABLE, planted["seed"])
    public = nkeys.from_seed(bytearray(planted["seed"].encode())).public_key.decode()
    users = f"{{ nkey: {public} }}, {{ user: filler, password: filler }}"
    extra = f"authorization {{ users: [ {users} ] }}\nno_auth_user: filler"
    server = PlainServer(tmp_path / "server", extra)
    try:
        server.start()
        with Connection(Server(server.url)) as conn:
            make_stream(conn, STREAM, subjects=["tel.>"])
        for n in (1, 2, 3):
            fill(server, "tel.edge-1.normal._batch.http", [LINE * 10], batch_headers(n, 10, compressed=False))
        yield Keyed(server, planted, files)
    finally:
        server.stop()


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: Keyed) -> Iterator[list[ObjectPath]]:
    """Lakes in object stores that take the planted keys, which are in the environment alone: in S3, and at
    Azure and Google where `make test SUITE=lakes` has fetched what imitates them."""
    with ExitStack() as stack:
        environment = stack.enter_context(imitation(tmp_path))
        keys = {"AWS_ACCESS_KEY_ID": "petiole", "AWS_SECRET_ACCESS_KEY": keyed.planted["store"]}
        keys["AWS_SESSION_TOKEN"] = keyed.planted["session"]
        for name in ("AWS_ENDPOINT_URL", "AWS_REGION"):
            keys[name] = environment[name]
        found = [ObjectPath(f"s3://{BUCKET}/lake")]
        keyed.planted["cloud"] = KEY
        for name, address in LAKES.items():
            with suppress(pytest.skip.Exception):
                keys |= stack.enter_context(cloud_store(name, tmp_path / name)).environment
                found.append(ObjectPath(f"{address}/lake"))
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.mark.skipif(not WHOLE, reason="in `make test SUITE=security`")
@pytest.mark.timeout(1800)
def test_no_secret_is_in_what_spark_a_lake_and_the_reports_keep(
    keyed: Keyed,
    lakes: list[ObjectPath],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    session = request.getfixturevalue("spark")  # only now: its workers have the environment that it begins in
    kept: dict[str, bytes] = {}
    for way, options in keyed.ways().items():
        given = {"servers": keyed.server.url, "stream": STREAM, **options}
        kept |= {f"{way}: {what}": text for what, text in read(session, given, tmp_path / way).items()}
    hub, pages = ["--server", keyed.server.url, "--seed-file", str(keyed.files["seed"])], tmp_path / "pages"
    for number, lake in enumerate(lakes):
        here, reports = ["--lake", str(lake)], pages / str(number)
        reports.mkdir(parents=True)
        assert ingest.main([*here, *hub]) is Exit.WELL
        assert refine.main(here) is Exit.WELL
        assert maintain.main(here) is Exit.WELL
        written = ["--json", str(reports / "audit.json"), "--html", str(reports / "audit.html")]
        assert audit.main([*here, *hub, *written]) is not Exit.FAILED
        kept |= objects(lake, tmp_path / "objects" / str(number))
    told = capfd.readouterr()
    kept |= {"what was said": told.out.encode(), "logged": told.err.encode()}
    kept |= files_below(pages) | events(session)
    assert leaked(kept, keyed.planted) == []
    whole = b"".join(kept.values())
    sought = (str(keyed.files["none"]), "Authorization Violation", "BatchScan nats", STREAM, "<html")
    assert [one for one in sought if one.encode() not in whole] == [], "the search has seen what it is about"
    assert sum(path.endswith("bronze/_delta_log/00000000000000000001.json") for path in kept) == len(lakes)


def read(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> dict[str, bytes]:
    """A batch and a streaming read, whether they are let or not, and what they show."""
    from hub_jobs.source.datasource import NatsDataSource

    spark.dataSource.register(NatsDataSource)
    said, shown = {}, io.StringIO()
    batch = spark.read.format("nats").options(**options).load()
    try:
        said["plan"] = plans(batch)
        said["rows"] = str(batch.collect()).encode()
    except Exception as error:
        said["error"] = f"{error!r} {error}".encode()
    frame = spark.readStream.format("nats").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(WAIT_SECONDS)
    except Exception as error:
        said["error of the query"] = f"{error!r} {error}".encode()
    with redirect_stdout(shown):
        query.explain(extended=True)
    shown.write(f"{query.status} {query.recentProgress} {query.exception()}")
    return said | {"query": shown.getvalue().encode()} | files_below(checkpoint)


def objects(lake: ObjectPath, copy: Path) -> dict[str, bytes]:
    """What all objects of a lake hold."""
    for found in lake.store.get_file_info(fs.FileSelector(lake.key, recursive=True)):
        if found.is_file:
            at = copy / found.path.removeprefix(lake.key).lstrip("/")
            at.parent.mkdir(parents=True, exist_ok=True)
            with lake.store.open_input_stream(found.path) as source:
                at.write_bytes(source.read())
    return files_below(copy)
