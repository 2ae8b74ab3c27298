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


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("gs://fleet/deep/lake", "deep/lake/bronze"),
        ("az://fleet/lake/", "lake/bronze"),
        ("abfss://fleet@account.dfs.core.windows.net/deep/lake", "deep/lake/bronze"),
    ],
)
def test_a_lake_at_google_or_azure_is_named_below_its_bucket_or_container(text: str, key: str) -> None:
    lake = parse_place(text)

    assert isinstance(lake, ObjectPath)
    assert (lake / "bronze").key == key
    assert (lake / "bronze").parent == lake
    assert str(lake) == text.rstrip("/")
    assert spark_path(lake) is None, "its tasks read by Arrow"
    assert delta_options(lake) == {}


@pytest.mark.parametrize(
    "text",
    [
        "s3://fleet",
        "s3://",
        "s3a://fleet/lake",
        "hdfs://fleet/lake",
        "gs://fleet/",
        "az:///lake",
        "abfss://fleet@account.dfs.core.windows.net",
    ],
)
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="s3://bucket/name"):
        parse_place(text)


@pytest.mark.parametrize("text", ["abfss://fleet/lake", "abfss://fleet@account/lake"])
def test_an_address_of_a_data_lake_names_its_account(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="names no account"):
        parse_place(text)


@pytest.mark.parametrize(
    "text",
    [
        "az://fleet/lake?sig=pl4nted",
        "https://account.blob.core.windows.net/fleet/lake?sig=pl4nted",
        "https://user:pl4nted@store/fleet/lake",
        "gs://user:pl4nted@fleet/lake",
        "s3://key:pl4nted@fleet/lake",
        "az://fleet/lake#pl4nted",
    ],
)
def test_an_address_with_a_credential_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse_place(text)

    assert "pl4nted" not in str(refused.value)


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
    assert delta_options(ObjectPath("gs://fleet/lake")) == {}
    assert delta_options(Path("/lake")) is None
