"""`petiole sizing`: what machine, disk and line a number of readings takes at a leaf, at the hub and in the
lake, each with the benchmark that it comes from. It asks no server and reads no file.

Exit codes: 0 done; 2 wrong usage.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Final, Literal, NoReturn

import typer

from agent.cli.configuration import AsJson, end, seconds_or_end
from agent.cli.sizing_figures import FIGURES, Load, SizingLine, lines

_WIDTH: Final = 80
_BITS: Final = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
_NOTE: Final = (
    "Measured on two cores that were shared with the load, so that CPU and seconds are the most it takes. "
    "Readings of 50 devices with three tags and a random value; yours may pack better. "
    "docs/capacity.md says what was not measured."
)


def command(
    readings: Annotated[float | None, typer.Option(help="Readings a second of one leaf.")] = None,
    devices: Annotated[int | None, typer.Option(help="Instead, with --every: its devices.")] = None,
    every: Annotated[str | None, typer.Option(help="How often each of them sends a request.")] = None,
    readings_per_request: Annotated[float, typer.Option(help="Readings in a request of a device.")] = 1.0,
    leaves: Annotated[int, typer.Option(help="Leaves like this one.")] = 1,
    classes: Annotated[int, typer.Option(help="Classes of each, under the same load.")] = 1,
    offline: Annotated[str, typer.Option(help="How long a leaf keeps all without its hub.")] = "3d",
    profile: Annotated[str, typer.Option(help="The link's profile, normal or thin.")] = "normal",
    link: Annotated[str | None, typer.Option(help="What the line carries, such as 256kbit.")] = None,
    keep: Annotated[float, typer.Option(help="Days that the lake keeps.")] = 365.0,
    as_json: AsJson = False,
) -> None:
    """Estimate the machine, disk and line that a load needs, from measured figures."""
    for option, value in (
        ("--readings-per-request", readings_per_request),
        ("--leaves", leaves),
        ("--classes", classes),
        ("--keep", keep),
    ):
        if not 1 <= value <= 1e6:
            _wrong(option, value, "a number from 1 to 1,000,000")
    load = Load(
        _rate(readings, devices, every, readings_per_request),
        readings_per_request,
        leaves,
        classes,
        seconds_or_end("--offline", offline),
        _profile(profile),
        keep,
        _bits(link),
    )
    found = list(lines(load))
    if as_json:
        sizes = {"max_bytes": load.max_bytes, "max_file_store": load.max_file_store}
        answers = {"load": asdict(load), "lines": [asdict(line) for line in found]}
        typer.echo(json.dumps({**answers, **sizes, "note": _NOTE}))
        return
    typer.echo("\n".join(_page(load, found)))


def _page(load: Load, found: Sequence[SizingLine]) -> list[str]:
    """The lines to print, each within 80 columns."""
    page = textwrap.wrap(
        f"{_figure(load.readings)} readings/s a leaf, {load.leaves:,} of them, "
        f"{_figure(load.offline / 3600)} hours offline, profile {load.profile}",
        _WIDTH,
    )
    for place, answers in groupby(found, lambda line: line.place):
        page += ["", place]
        for line in answers:
            page.append(f"  {line.what:<30}{_figure(line.value):>12} {line.unit:<12}  {line.source}".rstrip())
    if load.link and not any(line.what == "to catch up afterwards" for line in found):
        page += ["", *textwrap.wrap(_too_thin(load), _WIDTH)]
    size = f"{load.max_bytes // 2**20}MiB"
    page += ["", "for the leaf's configuration, a quarter more than the time offline takes"]
    page += [f'  max_bytes = "{size}"    # in each [[class]]']
    page += [f'  max_file_store = "{load.max_file_store // 2**20}MiB"    # in [nats], at least']
    return [*page, "", *textwrap.wrap(_NOTE, _WIDTH)]


def _too_thin(load: Load) -> str:
    if load.classes > 3:
        return "What an idle link takes was measured with up to three classes: no time to catch up is given."
    return (
        f"--link: {_figure(load.link / 1e3)} kbit/s are less than these readings take, so the leaf never "
        "catches up; send less of it (rules, thin), or take a faster line."
    )


def _figure(value: float) -> str:
    """Three digits that count, and every digit before the point."""
    if value and abs(value) < 100:
        value = float(f"{value:.3g}")
        return f"{value:g}" if abs(value) >= 1e-4 else f"{value:.0e}"
    return f"{value:,.0f}"


def _rate(readings: float | None, devices: int | None, every: str | None, each: float) -> float:
    most = FIGURES["most"].value
    by_devices = [option is not None for option in (devices, every)]
    if any(by_devices) == (readings is not None) or any(by_devices) != all(by_devices):
        end(["how much a leaf takes in is to be given once: --readings 100, or --devices 50 --every 10s"])
    if readings is None:
        readings = (devices or 0) * each / seconds_or_end("--every", every or "")
    if not 0 < readings <= most:
        measured = f"more than 0 and at most {most:,.0f} were measured"
        end([f"{_figure(readings)} readings/s of a leaf: {measured}; divide them among more --leaves"])
    return readings


def _profile(text: str) -> Literal["normal", "thin"]:
    if text not in ("normal", "thin"):
        _wrong("--profile", text, "normal or thin")
    return "thin" if text == "thin" else "normal"


def _bits(text: str | None) -> float:
    if text is None:
        return 0.0
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(k|M|G)?bit", text)
    if found is None or not float(found[1]):
        _wrong("--link", text, "bits a second, such as 256kbit or 2Mbit")
    return float(found[1]) * _BITS[f"{found[2] or ''}bit"]


def _wrong(option: str, value: object, wanted: str) -> NoReturn:
    end([f"{option} {value!r} is not {wanted}"])
