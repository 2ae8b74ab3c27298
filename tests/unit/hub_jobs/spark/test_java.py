"""The Java that Spark would start, looked at before it starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.job_loop import ended
from hub_jobs.metrics import JobMetrics
from hub_jobs.spark.connect_tasks import REMOTE
from hub_jobs.spark.java import JavaError, check_java
from hub_jobs.spark.session import session


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (REMOTE, "PYSPARK_GATEWAY_PORT", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)


def installed(directory: Path, script: str = "exit 1", release: str | None = None) -> Path:
    """A Java in this directory: a program that says what the script prints, and perhaps its `release`."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (directory / "release").write_text(release)
    return directory


@pytest.mark.parametrize(
    ("script", "release", "version"),
    [
        ("exit 1", 'IMPLEMENTOR="X"\nJAVA_VERSION="11.0.22"\n', "11"),
        ("exit 1", 'JAVA_VERSION="1.8.0_392"\n', "8"),
        ("echo 'openjdk version \"11.0.22\" 2024-01-16' >&2", None, "11"),
        ("echo 'java version \"1.8.0_392\"' >&2", None, "8"),
    ],
)
def test_an_older_java_is_named_with_where_it_is_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, release: str | None, version: str
) -> None:
    home = installed(tmp_path / "jdk", script, release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaError, match=f"Java 17 or newer, and {home}/bin/java is Java {version}: install"):
        check_java()


@pytest.mark.parametrize("release", ['JAVA_VERSION="17"\n', 'JAVA_VERSION="25.0.1"\n'])
def test_the_oldest_java_that_will_do_and_newer_ones_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "jdk", release=release)))
    check_java()


def test_a_job_says_it_in_its_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "jdk", release='JAVA_VERSION="11.0.22"')))
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)

    def job() -> Exit:
        session("gaps")
        return Exit.WELL

    assert ended("gaps", job, JobMetrics("gaps")) is Exit.FAILED
    said = capsys.readouterr().err
    assert (said.count("\n"), "gaps: the jobs need Java 17 or newer" in said) == (1, True)


def test_what_is_no_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="no `java` on the PATH: install"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "jdk", "echo broken")))
    with pytest.raises(JavaError, match=r"does not say its version .'broken'"):
        check_java()


@pytest.mark.parametrize("name", [REMOTE, "PYSPARK_GATEWAY_PORT"])
def test_a_java_that_runs_elsewhere_is_not_looked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "set")
    monkeypatch.setenv("PATH", "")
    check_java()
