"""What `petiole sizing` answers: it follows from the figures, more never takes less, wrong usage is told."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from agent.cli.main import composed
from agent.cli.sizing_figures import FIGURES, Load, lines
from agent.config import parse

LOADS = st.builds(
    Load,
    readings=st.floats(0.01, 300_000),
    readings_per_request=st.sampled_from([1.0, 7.0, 89.0, 500.0, 2000.0]),
    leaves=st.integers(1, 3000),
    classes=st.integers(1, 4),
    offline=st.floats(60, 30 * 86400),
    profile=st.sampled_from(["normal", "thin"]),
    keep=st.floats(1, 4000),
    link=st.sampled_from([0.0, 9600.0, 256e3, 1e9]),
)
FALLS = {"on disk, a reading", "over the link, a reading"}
"""What a reading takes becomes less where more of them share a batch."""


def answers(load: Load) -> dict[str, float]:
    """The values by place and words."""
    return {f"{line.place}: {line.what}": line.value for line in lines(load)}


def run(*arguments: str) -> Result:
    """The command with these arguments."""
    return CliRunner().invoke(composed(["sizing"]), ["sizing", *arguments])


@given(LOADS, st.floats(1.0, 50.0))
def test_more_readings_never_take_less(load: Load, times: float) -> None:
    few, many = answers(load), answers(replace(load, readings=load.readings * times))
    for what in few.keys() & many.keys():
        if not what.endswith(tuple(FALLS)):
            assert many[what] >= few[what] * (1 - 1e-9), what


@given(LOADS, st.floats(1.0, 10.0))
def test_a_longer_outage_never_takes_less_disk_nor_a_slower_line_less_time(load: Load, times: float) -> None:
    longer = replace(load, offline=load.offline * times)
    assert longer.max_bytes >= load.max_bytes
    slower, key = replace(load, link=load.link / times), "line: to catch up afterwards"
    if key in answers(slower):
        assert answers(slower)[key] >= answers(load)[key] * (1 - 1e-9)


@given(LOADS)
def test_a_stream_bridges_the_outage_below_what_is_trimmed_at(load: Load) -> None:
    stored = load.bytes_a_second("the leaf's stream") * load.offline
    room = 0.8 * load.max_bytes * load.classes
    assert stored <= room * (1 + 1e-9) <= (stored + load.classes * 2**20) * (1 + 1e-9)


def test_three_days_offline_at_a_hundred_readings_a_second() -> None:
    found = answers(Load(100, leaves=200, link=256e3))
    ten, hundred = FIGURES["the leaf's stream 10"].value, FIGURES["the leaf's stream 100"].value
    batch = ten + (hundred - ten) * 40 / 90
    assert found["leaf: readings in a batch"] == 50
    assert found["leaf: streams while offline"] == pytest.approx(2 * 3 * 86400 * batch / 1e6)
    assert found["hub: messages"] == 400
    assert found["lake: ingest and refine, a day's"] == pytest.approx(
        200 * 100 * 86400 / FIGURES["jobs"].value
    )
    sent = found["line: over the link, a reading"] * 100
    left = 32_000 - found["line: the same"] * 1000 / 8
    assert found["line: to catch up afterwards"] == pytest.approx(sent * 3 * 24 / left)


@pytest.mark.parametrize(
    ("load", "what"),
    [
        (Load(1, classes=4), "line: without readings"),
        (Load(1, leaves=1001), "hub: CPU of the agent, at rest"),
        (Load(60_000, readings_per_request=500), "leaf: written to a card"),
        (Load(1), "line: to catch up afterwards"),
    ],
)
def test_what_was_not_measured_has_no_line(load: Load, what: str) -> None:
    assert what not in answers(load)
    assert what in answers(Load(10, classes=3, leaves=333, link=1e6))


@pytest.mark.parametrize(
    "arguments", ["--readings 100", "--devices 3 --every 1m --classes 3", "--readings 300000"]
)
def test_the_lines_for_the_configuration_are_taken_and_no_line_is_wider_than_a_screen(arguments: str) -> None:
    ended = run(*arguments.split(), "--profile", "thin", "--link", "1bit", "--leaves", "900")
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    given_lines = tomllib.loads(
        "\n".join(line for line in ended.stdout.splitlines() if "max_" in line and "=" in line)
    )
    classes = 3 if "--classes" in arguments else 1
    table = {
        "role": "leaf",
        "domain": "edge-1",
        "nats": {"max_file_store": given_lines["max_file_store"], "hub_urls": ["nats-leaf://hub:7422"]},
        "class": [{"name": f"c{n}", "max_bytes": given_lines["max_bytes"]} for n in range(classes)],
    }
    assert len(parse(table, {}).class_) == classes


def test_as_json_it_has_the_same_lines_and_their_sources() -> None:
    found = json.loads(run("--readings", "100", "--link", "256 kbit", "--json").stdout)
    load = Load(100, link=256e3)
    assert [line["value"] for line in found["lines"]] == [line.value for line in lines(load)]
    assert all(line["source"] for line in found["lines"])
    assert found["max_bytes"] == load.max_bytes


def test_a_line_that_is_too_thin_is_told() -> None:
    said = " ".join(run("--readings", "100", "--link", "9.6kbit").stdout.split())
    assert (
        "--link: 9.6 kbit/s are less than these readings take, so the leaf never catches up; send less"
        in said
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "--readings 1 --offline 3x",
            "--offline '3x' is not a duration of at most a year, such as 10s, 8h or 3d",
        ),
        ("--devices 1 --every often", "--every 'often' is not a duration"),
        ("--readings 1 --link fast", "--link 'fast' is not bits a second, such as 256kbit or 2Mbit"),
        ("--readings 1 --profile wide", "--profile 'wide' is not normal or thin"),
        ("--readings 1 --leaves 0", "--leaves 0 is not a number from 1 to 1,000,000"),
        ("--readings nan", "nan readings/s of a leaf: more than 0"),
        (
            "--readings 2e6",
            "2,000,000 readings/s of a leaf: more than 0 and at most 690,187 were measured; divide",
        ),
        ("", "is to be given once: --readings 100, or --devices 50 --every 10s"),
        ("--readings 1 --every 5s", "is to be given once"),
        ("--devices 5", "is to be given once"),
    ],
)
def test_wrong_usage_says_what_where_and_the_remedy(arguments: str, said: str) -> None:
    ended = run(*arguments.split())
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr
