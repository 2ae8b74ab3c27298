"""The input `host`: what it measures on this machine, and when."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent import contract
from agent.base.metrics import Metrics
from agent.config import Seconds
from agent.leaf.inputs.host import GROUPS, Group, HostOptions
from agent.leaf.inputs.host.input import HostInput
from agent.leaf.inputs.host.procfs import Measure
from agent.leaf.inputs.host.psutil_metrics import Sampler, cpu_shares, mounts
from agent.leaf.inputs.shared.samples import next_due
from tests.harness.intakes import SampleCore

CPU = {"cpu_percent", "cpu_mode_percent"}
TIMES = st.fixed_dictionaries(
    {mode: st.floats(0, 1e6) for mode in ("user", "nice", "system", "idle", "iowait", "irq")}
)


async def run_until_taken(core: SampleCore, **options: object) -> None:
    stopping = asyncio.Event()
    settings = HostOptions(interval=Seconds(0.1), **options)  # type: ignore[arg-type]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(HostInput(settings, Metrics()).run(core, stopping))
        await core.taken.wait()
        stopping.set()


async def test_a_sample_is_one_chunk_of_valid_readings_of_one_instant() -> None:
    core = SampleCore()
    await run_until_taken(core)
    lines = core.chunks[0].payload.splitlines()
    readings = [contract.parse_reading(line) for line in lines]
    assert core.chunks[0].count == len(lines)
    assert core.chunks[0].position is None
    assert len({reading.ts for reading in readings}) == 1
    assert {reading.device for reading in readings} == {"edge-1"}
    series = [(reading.metric, json.dumps(reading.tags, sort_keys=True)) for reading in readings]
    assert len(set(series)) == len(series)
    assert {"load_1m", "memory_used_bytes", "uptime_seconds"} <= {reading.metric for reading in readings}


async def test_only_what_is_asked_for_is_collected() -> None:
    core = SampleCore()
    await run_until_taken(core, collect=["memory"])
    metrics = [json.loads(line)["metric"] for line in core.chunks[0].payload.splitlines()]
    assert metrics
    assert all(metric.startswith(("memory_", "swap_")) for metric in metrics)


async def test_a_refused_sample_is_dropped_and_the_next_goes_on() -> None:
    core = SampleCore(refuse=2)
    with structlog.testing.capture_logs() as logged:
        await run_until_taken(core, collect=["memory"])
    assert [entry["event"] for entry in logged] == [
        "samples are dropped: the stream is full",
        "samples are stored again",
    ]


@pytest.mark.parametrize(("group", "metrics"), [("cpu", CPU), ("cores", {"cpu_core_percent"})])
def test_percentages_come_with_the_second_sample(group: Group, metrics: set[str]) -> None:
    sampler, shares = Sampler((group,)), list[Measure]()
    assert not [measure for measure in sampler.sample().measures if measure.metric in metrics]
    for _ in range(10_000_000):  # until the kernel has counted some time
        if shares := [measure for measure in sampler.sample().measures if measure.metric in metrics]:
            break
    assert {measure.metric for measure in shares} == metrics
    assert all(0 <= measure.value <= 100 for measure in shares)


def test_only_the_mounts_that_are_wanted_are_measured() -> None:
    def measured(sampler: Sampler) -> set[str]:
        return {one.tags["mount"] for one in sampler.sample().measures if "mount" in one.tags}

    every = measured(Sampler(("disk",)))
    assert measured(Sampler(("disk",), lambda mount: mount not in every)) == set()
    assert measured(Sampler(("disk",), lambda mount: mount in every)) == every


def test_this_machine_can_be_measured_without_a_problem() -> None:
    assert Sampler(GROUPS).sample().problems == {}


def test_a_group_that_fails_is_named_and_takes_nothing_else_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError(13, "not allowed", "/proc/meminfo")

    monkeypatch.setattr("psutil.virtual_memory", broken)
    sample = Sampler(("memory", "cpu")).sample()
    assert list(sample.problems) == ["memory"]
    assert "/proc/meminfo" in sample.problems["memory"]
    assert "load_1m" in {one.metric for one in sample.measures}


@given(TIMES, TIMES)
def test_shares_are_a_whole(before: dict[str, float], after: dict[str, float]) -> None:
    shares = cpu_shares(before, after)
    assert not shares or abs(sum(shares.values()) - 100) < 0.1
    assert all(share >= 0 for share in shares.values())


def test_no_time_passed_has_no_shares() -> None:
    assert cpu_shares({"user": 1.0}, {"user": 1.0}) == {}


def test_a_device_is_looked_at_once_and_images_never() -> None:
    partitions = [
        ("/dev/a", "/data/bound", "ext4"),
        ("/dev/a", "/data", "ext4"),
        ("/dev/b", "/", "xfs"),
        ("/dev/loop1", "/snap/x", "squashfs"),
    ]
    assert mounts(iter(partitions)) == ["/", "/data"]


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0.1, 1e3))
def test_samples_keep_to_a_grid_and_never_pile_up(due: float, late: float, interval: float) -> None:
    following = next_due(due, due + late, interval)
    assert following > due
    assert -1e-6 < following - (due + late) <= interval + 1e-6
    steps = (following - due) / interval
    assert abs(steps - round(steps)) < 1e-3


@pytest.mark.parametrize("interval", [0.0, 0.05, 1e9])
def test_an_interval_that_cannot_work_is_named(interval: float) -> None:
    assert "interval" in HostInput(HostOptions(interval=Seconds(interval)), Metrics()).check()[0]
