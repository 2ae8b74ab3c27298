"""The archive of classes: where it lies, when it is another, and that nothing of it fails a job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hub_jobs.spark import class_archive
from hub_jobs.spark.class_archive import make
from hub_jobs.spark.java_options import archive, java_options


@pytest.fixture(autouse=True)
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark of which only the files are there."""
    for name in ("java/bin/java", "java/lib/modules", "spark/jars/a.jar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "java" / "bin" / "java").chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def made(
    monkeypatch: pytest.MonkeyPatch, code: int = 0, *, leaves: bool = True, content: bytes = b"classes"
) -> None:
    """Let another process than Spark's be the one that leaves an archive."""

    def run(program: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if leaves:
            Path(env["PETIOLE_CLASS_ARCHIVE"]).write_bytes(content)
        return subprocess.CompletedProcess(program, code, b"", b"no room")

    monkeypatch.setattr(subprocess, "run", run)


def test_an_archive_is_taken_where_it_is_and_made_again_for_another_java_or_spark(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(monkeypatch)
    assert "SharedArchiveFile" not in java_options("ingest")
    assert "was made" in make()
    assert "is there" in make()
    first = archive()
    assert first is not None
    assert f"-XX:SharedArchiveFile={first}" in java_options("ingest")
    assert "SerialGC" in java_options("ingest")
    assert "SerialGC" not in java_options("rollup")

    first.write_text("cut")
    assert archive() is None, "one that was cut off ends a Java machine"
    first.unlink()
    for changed in ("java/lib/modules", "spark/jars/b.jar"):
        (spark / changed).write_text("22")
        assert archive() is None
        assert "SharedArchiveFile" not in java_options("ingest")
        assert "was made" in make()
        assert list((spark / "cache/petiole").iterdir()) == [archive()], "the old one is gone"


def test_an_archive_is_never_made_by_two_at_once(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    first = subprocess.run

    def run(program: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        said.append(make())  # a second process comes while the first one trains
        return first(program, env=env)

    said: list[str] = []
    monkeypatch.setattr(subprocess, "run", run)
    assert "was made" in make()
    assert said == [f"another process makes an archive in {spark / 'cache/petiole'}"]
    assert list((spark / "cache/petiole").iterdir()) == [archive()]


def test_what_a_killed_process_left_is_deleted(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    make()
    path = archive()
    assert path is not None
    left = path.with_name(path.name.rpartition("-")[0] + ".4711")
    left.write_bytes(b"half")
    path.unlink()
    make()
    assert list((spark / "cache/petiole").iterdir()) == [archive()]


def test_a_directory_that_can_not_be_written_fails_no_job(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(monkeypatch)
    (spark / "cache").write_text("a file")
    assert class_archive.main() == 1
    assert "SharedArchiveFile" not in java_options("ingest")


def test_on_spark_connect_no_archive_is_made(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch)
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    assert class_archive.main() == 0
    assert not (spark / "cache").exists()


@pytest.mark.parametrize(("code", "leaves"), [(1, True), (0, False)])
def test_a_process_that_fails_leaves_nothing(
    spark: Path, monkeypatch: pytest.MonkeyPatch, code: int, leaves: bool
) -> None:
    made(monkeypatch, code, leaves=leaves)
    assert class_archive.main() == 1
    assert list((spark / "cache/petiole").iterdir()) == []


@pytest.mark.parametrize("missing", ["java/lib/modules", "spark/jars/a.jar"])
def test_without_java_or_spark_or_a_plain_path_there_is_no_archive_and_no_fault(
    spark: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/a 'b")
    assert archive() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(spark))
    (spark / missing).unlink()
    (spark / missing).parent.rmdir()
    assert archive() is None
    assert "SharedArchiveFile" not in java_options("refine")
    assert class_archive.main() == 1


@pytest.mark.parametrize("content", [b"", b"no archive", os.urandom(20_000)])
def test_java_starts_without_an_archive_that_is_damaged_and_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    with monkeypatch.context() as context:
        made(context, content=content)
        make()
    options = java_options("ingest").split()
    assert f"-XX:SharedArchiveFile={archive()}" in options
    done = subprocess.run(["java", *options, "-version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "warning" not in done.stderr.lower()
