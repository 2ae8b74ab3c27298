"""`ingest` against real servers: a hub, leaves, their sources, and the jobs' own identity."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys
import pytest
from nats.aio.msg import Msg

from agent.contract import (
    FLEET_BUCKET,
    SYNC_METADATA,
    ClassState,
    Exit,
    Ledger,
    Previous,
    Readings,
    StreamState,
    aggregate,
    committed_subject,
    ledger_subject,
    parse_committed,
)
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables.delta import ensure_table, open_table
from hub_jobs.times import micros
from tests.harness.servers import api, open_server_pair
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream
from tests.security.hidden import files_below, leaked
from tests.spark.fleet import EPOCHS, RUN, Fleet, fleet
from tests.spark.kept import events
from tests.unit.hub_jobs.refined import refine_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["fleet"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


async def test_what_the_hub_holds_is_in_bronze_once_with_the_domain_of_its_source(
    fleet: Fleet, spark: SparkSession
) -> None:
    assert await fleet.ingest() == Exit.WELL
    assert await fleet.ingest() == Exit.WELL

    assert fleet.bronze("domain", "source_stream", "source_seq", "class", "run", "n", "count") == [
        (domain, f"TEL_{domain}_normal", n, "normal", RUN, n, 2)
        for domain, n in [("edge-1", 1), ("edge-1", 2), ("edge-1", 3), ("edge-2", 1), ("edge-2", 2)]
    ]
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]
    assert set(fleet.bronze("stream")) == {AGGREGATE}

    await fleet.store("edge-2", 3)
    await fleet.at_hub(6)
    assert await fleet.ingest() == Exit.WELL
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5, 6]
    seed = {"seed": fleet.servers.hub.keys["jobs"].read_text().strip()}
    assert leaked(files_below(fleet.lake) | events(spark), seed) == []


async def test_what_a_class_brought_before_its_rest_keeps_its_domain(fleet: Fleet) -> None:
    """The hub drops the source of an idle class, also where no `ingest` has run since its last reading."""
    config = (await api(fleet.registrar, f"STREAM.INFO.{AGGREGATE}"))["config"]
    config["sources"] = [source for source in config["sources"] if source["name"] != "TEL_edge-2_normal"]
    await api(fleet.registrar, f"STREAM.UPDATE.{AGGREGATE}", config)

    assert await fleet.ingest() == Exit.WELL

    named = fleet.bronze("domain", "source_stream", "run", "n")
    assert named[3:] == [("edge-2", "TEL_edge-2_normal", RUN, n) for n in (1, 2)]


async def test_one_run_ingests_every_stream_that_it_is_given(tmp_path: Path) -> None:
    streams = {"edge-1": aggregate(0), "edge-2": aggregate(1)}
    async with open_server_pair(tmp_path, *streams, aggregates=tuple(streams.values())) as servers:
        agents = {domain: await leaf.connect("agent") for domain, leaf in servers.leaves.items()}
        registrar = await servers.hub.connect("registrar")
        fleet = Fleet(servers, registrar, agents, tmp_path / "lake")
        for domain, stream in streams.items():
            await make_leaf_stream(agents[domain], domain, EPOCHS[domain])
            await make_aggregate(registrar, {domain: EPOCHS[domain]}, stream)
            await fleet.store(domain, 1, 2)
            await held(registrar, stream, 2)
        fleet.options += ["--stream", aggregate(0), "--stream", aggregate(1)]
        assert await fleet.ingest() == Exit.WELL
        assert await fleet.ingest() == Exit.WELL
        assert fleet.bronze("stream", "domain", "seq") == [
            (stream, domain, seq) for domain, stream in streams.items() for seq in (1, 2)
        ]


async def test_a_stream_that_is_missing_or_refused_is_named_and_stops_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing, there = aggregate(0), aggregate(1)
    async with open_server_pair(tmp_path, "edge-1", aggregates=(missing, there)) as servers:
        agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
        fleet = Fleet(servers, registrar, {"edge-1": agent}, tmp_path / "lake")
        await make_leaf_stream(agent, "edge-1", EPOCHS["edge-1"])
        await make_aggregate(registrar, {"edge-1": EPOCHS["edge-1"]}, there)
        await fleet.store("edge-1", 1, 2)
        await held(registrar, there, 2)
        named = [option for name in (missing, "NOPE", there) for option in ("--stream", name)]

        assert ingest.main([*fleet.options, *named]) == Exit.UNREACHABLE

        assert fleet.bronze("stream", "seq") == [(there, 1), (there, 2)]
        said = capfd.readouterr().err
        for name in (missing, "NOPE"):
            assert f"ingest {name}: stream {name} is not there, or this key may not read it" in said

        await fleet.store("edge-1", 3, 4)
        await held(registrar, there, 4)
        await api(registrar, f"STREAM.PURGE.{there}", {"seq": 4})
        assert ingest.main([*fleet.options, *named]) == Exit.LOSS, "a gap is said by one run only"
        assert fleet.bronze("seq") == [1, 2, 4]


async def test_a_run_with_nothing_to_do_starts_no_jvm_and_tells_the_registrar_again(fleet: Fleet) -> None:
    told: list[Msg] = []

    async def note(message: Msg) -> None:
        told.append(message)
        await message.respond(b"{}")

    assert await fleet.ingest() == Exit.WELL
    await fleet.registrar.subscribe(committed_subject(AGGREGATE), cb=note)
    await fleet.registrar.flush()
    without_java = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
    program = [sys.executable, "-m", "hub_jobs.ingest", *fleet.options]

    done = await asyncio.to_thread(
        subprocess.run, program, env=without_java, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    (message,) = told
    committed = parse_committed(message.data)
    assert (committed.stream, committed.seq) == (AGGREGATE, 5)
    assert [committed.created] == sorted(set(fleet.bronze("created")))
    assert committed.arrived == micros(max(fleet.bronze("arrived")))


async def test_of_a_hub_that_syncs_at_an_interval_only_what_is_on_its_disk_is_read(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    config = (await api(fleet.registrar, f"STREAM.INFO.{AGGREGATE}"))["config"]
    config["metadata"] = {**config.get("metadata", {}), SYNC_METADATA: "1"}
    made = await api(fleet.registrar, f"STREAM.UPDATE.{AGGREGATE}", config)
    on_disk, asked = 3, []

    assert await fleet.ingest() == Exit.UNREACHABLE, "nobody says what is on disk"
    assert "the hub's server syncs its disk each 1 s" in capfd.readouterr().err

    async def answer(message: Msg) -> None:
        asked.append(parse_committed(message.data).seq)
        row = {"v": 1, "purged": 0, "created": made["created"], "synced": on_disk}
        await message.respond(json.dumps(row).encode())

    await fleet.registrar.subscribe(committed_subject(AGGREGATE), cb=answer)
    await fleet.registrar.flush()
    assert await fleet.ingest() == Exit.WELL
    assert fleet.bronze("seq") == [1, 2, 3]
    on_disk = 5
    assert await fleet.ingest() == Exit.WELL
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]
    assert asked == [0, 3, 0, 5]


async def test_a_gap_stops_nothing_and_is_named_once(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    assert await fleet.ingest() == Exit.WELL
    await fleet.store("edge-1", 4, 5, 6, 7)
    await fleet.at_hub(9)
    await api(fleet.registrar, f"STREAM.PURGE.{AGGREGATE}", {"seq": 8})

    assert await fleet.ingest() == Exit.LOSS

    assert "has lost sequences 6-7\n" in capfd.readouterr().err
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5, 8, 9]
    table = open_table(fleet.lake, "bronze")
    assert table is not None
    newest = table.delta.history(1)[0]
    assert newest["petiole.gaps"] == "[[6, 7]]"
    assert json.loads(newest["petiole.gaps.why"])[2] == "unknown", "no limit of the stream can have done it"
    assert await fleet.ingest() == Exit.WELL


async def purged_while_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, keep_from: int) -> Exit:
    """Run the job; once it has planned, all messages below a sequence are purged."""
    loop, first = asyncio.get_running_loop(), run_tasks

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(ingest, "run_tasks", first)
        purge = api(fleet.registrar, f"STREAM.PURGE.{AGGREGATE}", {"seq": keep_from})
        asyncio.run_coroutine_threadsafe(purge, loop).result(30.0)
        return first(*given)

    monkeypatch.setattr(ingest, "run_tasks", overtaken)
    return await fleet.ingest()


@pytest.mark.parametrize("keep_from", [3, 6])
async def test_a_lake_that_is_new_to_a_stream_begins_behind_what_another_one_had_purged(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], keep_from: int
) -> None:
    assert await purged_while_read(fleet, monkeypatch, keep_from) == Exit.WELL

    said = capfd.readouterr().err
    assert f"sequences 1-{keep_from - 1} of {AGGREGATE} were purged before this lake began" in said
    await fleet.store("edge-1", 4)
    await fleet.at_hub(7 - keep_from)
    assert await fleet.ingest() == Exit.WELL
    assert fleet.bronze("seq") == list(range(keep_from, 7))


async def test_what_is_purged_while_a_lake_that_has_begun_reads_is_a_gap(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await fleet.ingest() == Exit.WELL
    await fleet.store("edge-1", 4, 5)
    await fleet.at_hub(7)

    assert await purged_while_read(fleet, monkeypatch, 7) == Exit.LOSS


async def test_what_is_purged_of_a_stream_that_was_made_anew_is_a_gap(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await fleet.ingest() == Exit.WELL
    await fleet.servers.hub.wipe()
    for leaf in fleet.servers.leaves.values():
        await leaf.wait_linked()
    await make_aggregate(fleet.registrar, await fleet.new_epochs())
    await fleet.at_hub(5)

    assert await purged_while_read(fleet, monkeypatch, 3) == Exit.LOSS


async def test_an_audit_that_asks_the_hub_says_what_is_on_its_way(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    leaf = await fleet.leaf_stream("edge-1")
    ledger = Ledger("edge-1", "normal", RUN, 3, ((1, 3),), Readings(6, 6), StreamState(leaf["created"], 1, 3))
    await fleet.publish("edge-1", ledger_subject("edge-1", "normal"), ledger.encode(), {})
    await fleet.at_hub(6)
    assert await fleet.ingest() == Exit.WELL
    await fleet.store("edge-1", 4)
    await fleet.at_hub(7)
    said = ClassState(
        "epoch0000000a", leaf["created"], 1, 6, 3, 900, Previous(RUN, 5, Readings(11, 10), False)
    )
    record = {"v": 1, "domain": "edge-1", "announced_at": "2026-11-21T10:00:00+00:00"}
    record |= {"classes": {"normal": {"held": {"seq": 5}}}, "said": {"normal": asdict(said)}}
    bucket = await fleet.registrar.jetstream().create_key_value(bucket=FLEET_BUCKET, direct=True)
    await bucket.put("edge-1", json.dumps(record).encode())

    report = fleet.lake.with_name("audit.json")
    assert audit.main([*fleet.options, "--json", str(report)]) == Exit.WELL
    found = json.loads(report.read_text())
    rows = {(one["domain"], one["run"]): one for one in found["rows"]}
    assert (rows["edge-1", RUN]["stored"], rows["edge-1", RUN]["on_the_way"]) == (10, 4)
    assert rows["edge-2", RUN]["on_the_way"] is None, "that leaf never announced itself"
    (way,) = found["on_the_way"]
    assert (way["ranges"], way["at_hub"], way["at_leaf"]) == ([[5, 6]], 1, 1)
    assert any("(sequences 5-6 of the leaf's stream)" in one for one in found["findings"])
    assert [one["state"] for one in found["hours"] if one["on_the_way"]] == ["pending"]

    refine_all(fleet.lake)
    config = (await api(fleet.registrar, f"STREAM.INFO.{AGGREGATE}"))["config"]
    config["sources"] = [source for source in config["sources"] if source["name"] != "TEL_edge-1_normal"]
    await api(fleet.registrar, f"STREAM.UPDATE.{AGGREGATE}", config)
    assert audit.main([*fleet.options, "--json", str(report)]) == Exit.WELL
    assert json.loads(report.read_text())["on_the_way"] == [way], "also of a leaf whose source is taken away"

    lake = ["--lake", str(fleet.lake), "--json", str(report)]
    assert audit.main(["--server", "nats://127.0.0.1:1", *lake]) == Exit.UNREACHABLE
    told = capfd.readouterr()
    assert "what is on its way is not known: no server can be reached" in told.err
    assert "what is still on its way is not known: no server can be reached" in told.out
    assert json.loads(report.read_text())["on_the_way"] is None
    assert audit.main([*fleet.options[:2], *lake]) == Exit.UNREACHABLE
    told = capfd.readouterr()
    assert (
        "what is still on its way is not known: the hub does not know this key (none was given)" in told.out
    )
    assert "was not asked" not in told.out
    with pytest.raises(SystemExit):
        audit.main([*lake, *fleet.options[2:4]])
    assert "no --server to show it to" in capfd.readouterr().err


async def test_a_stream_that_is_made_anew_starts_at_its_own_beginning(fleet: Fleet) -> None:
    assert await fleet.ingest() == Exit.WELL
    await api(fleet.registrar, f"STREAM.PURGE.{AGGREGATE}", {"seq": 5})
    await fleet.servers.hub.wipe()
    for leaf in fleet.servers.leaves.values():
        await leaf.wait_linked()
    await make_aggregate(fleet.registrar, await fleet.new_epochs())
    await fleet.at_hub(5)

    assert await fleet.ingest() == Exit.WELL

    assert fleet.bronze("seq") == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(set(fleet.bronze("created"))) == 2


async def test_what_can_not_be_reached_or_used_is_said_with_its_exit_code(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    lake = ["--lake", str(fleet.lake)]

    assert ingest.main(["--server", "nats://127.0.0.1:1", *lake]) == Exit.UNREACHABLE
    assert "no server can be reached" in capfd.readouterr().err
    assert ingest.main([*fleet.options[:2], *lake]) == Exit.UNREACHABLE
    assert "the hub does not know this key (none was given)" in capfd.readouterr().err
    stranger = fleet.lake.with_name("stranger.nk")
    stranger.write_bytes(nkeys.encode_seed(b"s" * 32, nkeys.PREFIX_BYTE_USER))
    stranger.chmod(0o600)
    assert ingest.main([*fleet.options[:2], "--seed-file", str(stranger), *lake]) == Exit.UNREACHABLE
    assert capfd.readouterr().err == (
        f"ingest: the hub does not know this key ({stranger}); it is keys/jobs.nk of the hub's agent\n"
    )
    assert ingest.main([*fleet.options, "--stream", "NOPE"]) == Exit.UNREACHABLE
    assert capfd.readouterr().err == (
        "ingest: stream NOPE is not there, or this key may not read it; "
        "the hub's aggregates are named TELEMETRY_0, TELEMETRY_1, …\n"
    )
    assert not fleet.lake.exists()
    fleet.lake.write_text("not a directory")
    assert await fleet.ingest() == Exit.FAILED
    assert f"table {fleet.lake / 'bronze'}" in capfd.readouterr().err
    fleet.lake.unlink()
    ensure_table(fleet.lake, "readings").commit([], {"refine": 5})
    assert await fleet.ingest() == Exit.FAILED
    assert f"table {fleet.lake / 'bronze'} is gone" in capfd.readouterr().err
    assert not (fleet.lake / "bronze").exists()
    with pytest.raises(SystemExit) as usage:
        ingest.main(["--server", "nats://user:secret@127.0.0.1", *lake])
    assert usage.value.code == Exit.USAGE
