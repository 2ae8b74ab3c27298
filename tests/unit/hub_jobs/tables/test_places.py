"""Where a lake lies, as a command line says it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hub_jobs.tables.places import ObjectPath, delta_options, parse_place, spark_path


def test_a_lake_is_a_directory_or_a_name_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert parse_place("lake") == tmp_path / "lake"
    lake = parse_place("s3://fleet/deep/lake/")

    assert isinstance(lake, ObjectPath)
    assert str(lake / "bronze") == "s3://fleet/deep/lake/bronze"
    assert ((lake / "bronze").name, (lake / "bronze").parent) == ("bronze", lake)
    assert (lake / "bronze").key == "fleet/deep/lake/bronze"
    assert spark_path(lake) == "s3a://fleet/deep/lake"
    assert spark_path(tmp_path) == str(tmp_path)


@pytest.mark.parametrize("text", ["s3://fleet", "s3://", "s3a://fleet/lake", "hdfs://fleet/lake"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="s3://bucket/name"):
        parse_place(text)


def test_a_commit_to_a_store_is_a_conditional_put_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    options = delta_options(ObjectPath("s3://fleet/lake"))

    assert options is not None
    assert options["conditional_put"] == "etag"
    assert options["AWS_S3_ALLOW_UNSAFE_RENAME"] == "false"
    assert "secret" not in str(options)
    assert delta_options(Path("/lake")) is None
