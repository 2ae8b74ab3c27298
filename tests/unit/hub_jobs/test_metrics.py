"""What Prometheus reads of a job, by prometheus_client's parser: from the file and from the endpoint."""

from __future__ import annotations

import argparse
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import Exit
from hub_jobs.ingest import run as ingest
from hub_jobs.job_loop import Stop, job_parser, metrics_of, run_job, run_once
from hub_jobs.maintain.run import main as maintain
from hub_jobs.metrics import DIRECTORY_VARIABLE, JobMetrics, MetricsAddress, address
from hub_jobs.refine import run as refine
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.spark import session
from hub_jobs.tables.delta import ConflictError, ensure_table
from hub_jobs.tables.scan import files
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import LINE, batch_row, numbered
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

Samples = dict[tuple[str, ...], float]


def parsed(text: str) -> Samples:
    """Values by the metric's name, without `petiole_job_`, the job's name, and other labels' values."""
    return {
        (
            sample.name.removeprefix("petiole_job_"),
            sample.labels.pop("name"),
            *sample.labels.values(),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(directory: Path, job: str) -> Samples:
    return parsed((directory / f"petiole_job_{job}.prom").read_text())


def well(stop: Stop) -> Exit:
    return Exit.WELL


def conflict(stop: Stop) -> Exit:
    raise ConflictError("another writer was first")


def test_a_file_says_how_the_last_run_ended_and_counts_over_processes(tmp_path: Path) -> None:
    began = time.time()
    assert run_job(well, None, JobMetrics("tidy", tmp_path)) is Exit.WELL
    first = read(tmp_path, "tidy")
    assert first["last_exit_code", "tidy"] == Exit.WELL
    assert began <= first["last_success_timestamp_seconds", "tidy"] <= time.time()
    assert first["last_success_timestamp_seconds", "tidy"] == first["last_end_timestamp_seconds", "tidy"]
    assert 0 <= first["last_duration_seconds", "tidy"] <= time.time() - began
    assert (first["runs_total", "tidy", "well"], first["runs_total", "tidy", "conflict"]) == (1, 0)

    assert run_job(conflict, None, JobMetrics("tidy", tmp_path)) is Exit.CONFLICT
    second = read(tmp_path, "tidy")
    assert second["last_exit_code", "tidy"] == Exit.CONFLICT
    assert second["last_success_timestamp_seconds", "tidy"] == first["last_success_timestamp_seconds", "tidy"]
    assert second["last_end_timestamp_seconds", "tidy"] > first["last_end_timestamp_seconds", "tidy"]
    assert (second["runs_total", "tidy", "well"], second["runs_total", "tidy", "conflict"]) == (1, 1)
    assert second["conflicts_total", "tidy"] == 1


def test_a_run_that_ends_by_a_fault_of_ours_is_a_failed_run(tmp_path: Path) -> None:
    def job() -> Exit:
        raise RuntimeError("never foreseen")

    with pytest.raises(RuntimeError):
        run_once(job, JobMetrics("tidy", tmp_path))

    found = read(tmp_path, "tidy")
    assert found["last_exit_code", "tidy"] == Exit.FAILED
    assert ("last_success_timestamp_seconds", "tidy") not in found


def test_figures_of_a_run_are_of_that_run_alone(tmp_path: Path) -> None:
    metrics = JobMetrics("ingest", tmp_path)

    def job(stop: Stop) -> Exit:
        metrics.add_ingested("S", 3, 100)
        if metrics.runs.labels("ingest", "well")._value.get():
            return Exit.USAGE  # which ends the loop
        return Exit.WELL

    assert run_job(job, 0.001, metrics) is Exit.USAGE
    found = read(tmp_path, "ingest")
    assert (found["runs_total", "ingest", "well"], found["runs_total", "ingest", "usage"]) == (1, 1)
    assert (found["ingested_messages", "ingest", "S"], found["ingested_bytes", "ingest", "S"]) == (3, 100)


def test_two_jobs_of_a_process_answer_at_one_address_and_have_a_file_each(tmp_path: Path) -> None:
    first = JobMetrics("ingest", tmp_path, MetricsAddress("127.0.0.1", 0))
    second = first.beside("refine")
    first.add_ingested("S", 3, 100)
    run_once(lambda: Exit.LOSS, second)
    run_once(lambda: Exit.WELL, second.beside("ingest"))
    second.add_refined(7, 0, 0)
    first.begin()
    first.write()
    with first.served() as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        shown = parsed(answer.read().decode())

    assert (shown["last_exit_code", "refine"], shown["refined_rows", "refine", "readings"]) == (Exit.LOSS, 7)
    assert ("ingested_messages", "ingest", "S") not in shown
    of_ingest, of_refine = read(tmp_path, "ingest"), read(tmp_path, "refine")
    assert {labels[1] for labels in of_ingest} == {"ingest"}
    assert {labels[1] for labels in of_refine} == {"refine"}
    assert (
        JobMetrics("refine", tmp_path).registry.get_sample_value(
            "petiole_job_runs_total", {"name": "refine", "outcome": "loss"}
        )
        == 1
    )


def test_another_user_may_read_the_file_and_no_draft_is_left(tmp_path: Path) -> None:
    JobMetrics("tidy", tmp_path).write()

    (file,) = tmp_path.iterdir()
    assert file.name == "petiole_job_tidy.prom"
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe", b"petiole_job_runs_total{", b'petiole_job_runs_total{outcome="well"} -1\n']
)
def test_a_damaged_file_or_a_directory_that_is_gone_fails_no_job(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "petiole_job_tidy.prom").write_bytes(damage)
    assert run_job(well, None, JobMetrics("tidy", tmp_path)) is Exit.WELL
    assert read(tmp_path, "tidy")["runs_total", "tidy", "well"] == 1
    assert "begin again" in capsys.readouterr().err

    assert run_job(well, None, JobMetrics("tidy", tmp_path / "gone")) is Exit.WELL
    assert "gone" in capsys.readouterr().err


def test_an_endpoint_answers_while_the_job_runs_and_not_afterwards() -> None:
    metrics = JobMetrics("tidy", None, MetricsAddress("127.0.0.1", 0))
    before = set(threading.enumerate())  # another test's server may run beside it
    with metrics.served() as port:
        assert port is not None
        url = f"http://127.0.0.1:{port}/metrics"
        run_once(lambda: Exit.LOSS, metrics)
        with urllib.request.urlopen(url) as answer:
            assert parsed(answer.read().decode())["last_exit_code", "tidy"] == Exit.LOSS
        busy = JobMetrics("tidy", None, MetricsAddress("127.0.0.1", port))
        assert run_job(well, 1.0, busy) is Exit.FAILED
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
    later = set(threading.enumerate()) - before
    assert not [thread for thread in later if "serve_forever" in thread.name]


def test_the_directory_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))

    assert maintain(["--lake", str(tmp_path / "none")]) is Exit.USAGE

    assert read(tmp_path, "maintain")["last_exit_code", "maintain"] == Exit.USAGE


def test_an_endpoint_is_on_loopback_unless_told_otherwise_and_for_jobs_that_go_on() -> None:
    parser = job_parser("tidy", "", repeats=True)
    lake = ["--lake", "lake"]
    assert address("9465") == address("127.0.0.1:9465") == MetricsAddress("127.0.0.1", 9465)
    assert address("[::1]:9465") == MetricsAddress("::1", 9465)
    for text in ("host", "host:", "host:70000", "-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            address(text)
    assert metrics_of(
        "tidy", parser, parser.parse_args([*lake, "--every", "30s", "--metrics-listen", "0"])
    ).shown
    with pytest.raises(SystemExit):
        metrics_of("tidy", parser, parser.parse_args([*lake, "--metrics-listen", "9465"]))


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What jobs give to executors is done in this process, one piece after the other."""
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    monkeypatch.setattr(session, "session", lambda name: spark)
    for job in (ingest, refine):
        monkeypatch.setattr(job, "run_tasks", lambda _, task, work: list(map(task, work)))


@pytest.mark.usefixtures("no_spark")
def test_ingest_says_how_far_it_is_behind_a_stream_and_what_it_committed(tmp_path: Path) -> None:
    lake, arguments = tmp_path / "lake", ["--stream", "S", "--metrics", str(tmp_path)]
    server = PlainServer(tmp_path / "server")
    server.start()
    try:
        with Connection(Server(server.url)) as conn:
            make_stream(conn, "S")
        fill(server, "S.a", [b"1", b"2", b"3"])
        arguments += ["--server", server.url, "--lake", str(lake)]
        assert ingest.main(arguments) is Exit.WELL
        found = read(tmp_path, "ingest")
        assert (found["stream_lag_sequences", "ingest", "S"], found["stream_lag_seconds", "ingest", "S"]) == (
            0,
            0,
        )
        assert found["ingested_messages", "ingest", "S"] == 3
        sizes = files(ensure_table(lake, "bronze"))["size_bytes"].to_pylist()
        assert found["ingested_bytes", "ingest", "S"] == sum(sizes)

        fill(server, "S.a", [b"4", b"5"])
        stopped = JobMetrics("ingest", tmp_path)
        options = ingest.IngestOptions(Server(server.url), "S", lake)
        run_once(lambda: ingest.run(options, lambda: True, stopped), stopped)
        found = read(tmp_path, "ingest")
        assert found["stream_lag_sequences", "ingest", "S"] == 2
        assert 0 < found["stream_lag_seconds", "ingest", "S"] < 60
        assert found["ingested_messages", "ingest", "S"] == 0
    finally:
        server.stop()


@pytest.mark.usefixtures("no_spark")
def test_refine_and_maintain_say_what_became_of_rows_and_how_large_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    place = ["--lake", str(lake), "--metrics", str(tmp_path)]
    again = batch_row(LINE * 10, n=2)
    add_bronze(
        lake, [*numbered(1, 2), {**again, "source_seq": 2}, batch_row(b"no line\n", n=3, source_seq=3)]
    )

    assert refine.main(place) is Exit.WELL

    found = read(tmp_path, "refine")
    kinds = {kind: found["refined_rows", "refine", kind] for kind in ("readings", "quarantine", "repeats")}
    assert kinds == {"readings": 20, "quarantine": 1, "repeats": 1}
    assert found["unrefined_sequences", "refine"] == 0
    held = files(ensure_table(lake, "readings"))
    assert found["table_files", "refine", "readings"] == held.num_rows
    assert found["table_bytes", "refine", "readings"] == sum(held["size_bytes"].to_pylist())
    assert found["table_rows", "refine", "readings"] == 20

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    add_bronze(lake, numbered(5, 6))
    monkeypatch.setattr(refine, "run_tasks", full)
    assert refine.main(place) is Exit.FAILED
    assert read(tmp_path, "refine")["unrefined_sequences", "refine"] == 2

    assert maintain([*place, "--dry-run"]) is Exit.WELL
    assert read(tmp_path, "maintain")["table_rows", "maintain", "bronze"] == 6
