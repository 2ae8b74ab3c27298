"""Implements `petiole status` from the agent's admin server.

Exit codes: 0 well or recovering; 1 an input is down or the clock wrong; 3 readings lost within an hour or
held back, the link needs a person, the server does not store, or the hub may lack a removed class's readings;
5 no agent, or the link is down. --watch runs until Ctrl-C and ends with 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from agent.base.logs import NO_THREAT, time_text
from agent.base.logs import shown as printable
from agent.cli.configuration import ConfigFile, account_key, configuration, end, quiet
from agent.config import Config
from agent.contract import Exit, LeafState, Severity, exit_of, state_of

if TYPE_CHECKING:
    from agent.base.terminal import TerminalLine

_LISTED: Final = 12
"""Leaves named by the hub's status; `petiole fleet` has all."""

AsJson = Annotated[bool, typer.Option("--json", help="Print what /status answers; with --links also theirs.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat it until Ctrl-C.")]
Links = Annotated[bool, typer.Option("--links", "-l", help="Every mirror and source with its true lag.")]
Consumers = Annotated[
    bool, typer.Option("--consumers", help="Every consumer of the agent's streams and how far it is.")
]
Interval = Annotated[float, typer.Option("--interval", min=0.5, max=3600, help="Seconds, with --watch.")]


def command(
    config: ConfigFile,
    as_json: AsJson = False,
    watch: Watch = False,
    links: Links = False,
    consumers: Consumers = False,
    interval: Interval = 2.0,
) -> None:
    """Say how the link is, class by class, and how long until something would be lost."""
    from agent.cli.query import AdminStatusError

    settings = configuration(config)
    quiet(settings)
    if consumers and (links or watch):
        end(["--consumers stands alone: leave out --links and --watch"])
    if links or consumers:
        account_key(settings)
    if watch:
        _watch(settings, as_json, links, interval)
    try:
        status = _look(settings, links)
    except AdminStatusError as error:
        end([str(error)], Exit.UNREACHABLE)
    if consumers:
        from agent.cli.query.streams import gather_consumers

        rows, problem = gather_consumers(settings, status)
        status["consumers"] = {"rows": rows, "problem": problem}
    _show(status, as_json)
    raise typer.Exit(exit_code(status))


def _look(settings: Config, links: bool) -> dict[str, Any]:
    """Return the status, with link rows in `lags` if `links`. Raises `AdminStatusError`."""
    from agent.cli.query import status_of

    status = status_of(settings)
    if links:
        from agent.cli.query.links import gather_links

        rows, problem = gather_links(settings, status)
        status["lags"] = {"rows": rows, "problem": problem}
    return status


def _show(status: Mapping[str, Any], as_json: bool) -> None:
    from agent.base.terminal import draw

    if as_json:
        typer.echo(json.dumps(status, indent=2, default=asdict))
    else:
        draw(drawn(status))


def drawn(status: Mapping[str, Any]) -> list[TerminalLine]:
    """Return the status for a terminal; with tables only coloured lines."""
    from agent.base.terminal import BAD, GOOD, WAITS, TerminalLine, rows_that_fit, terminal_width
    from agent.cli.query.links import link_lines

    sentences = list(lines(status))
    styles = {f"  {row['sentence']}": BAD if row["checked"] else WAITS for row in _removed(status)}
    for state, sentence in _states(status):
        styles[f"  {sentence}"] = BAD if state.severity is Severity.BAD else WAITS
    shown = [TerminalLine(sentence, styles.get(sentence, "")) for sentence in sentences]
    if sentences:
        calm = status["role"] == "hub" or status["link"]["state"] == "flowing"
        well = _link_is_well(status)
        shown[0] = TerminalLine(sentences[0], GOOD if calm and well else WAITS if well else BAD)
    coloured = [line for line in shown if line.style]
    if (consumers := status.get("consumers")) is not None:
        from agent.cli.query.streams import consumer_lines

        most = rows_that_fit(5 + len(coloured))
        return [*coloured, *consumer_lines(**consumers, most=most, width=terminal_width())]
    if (lags := status.get("lags")) is None:
        return shown
    most = rows_that_fit(5 + len(coloured))
    return [*coloured, *link_lines(**lags, most=most, width=terminal_width())]


def _watch(settings: Config, as_json: bool, links: bool, interval: float) -> NoReturn:
    from agent.base.terminal import repeat, watch

    if as_json:
        repeat(lambda: _write_json(settings, links), interval)
    else:
        watch(lambda: _once(settings, links), interval)
    raise typer.Exit(Exit.WELL)


def _write_json(settings: Config, links: bool) -> None:
    from agent.cli.query import AdminStatusError

    try:
        status: Mapping[str, Any] = _look(settings, links)
    except AdminStatusError as error:
        status = {"problem": str(error)}
    sys.stdout.write(json.dumps(status, default=asdict) + "\n")
    sys.stdout.flush()


def _once(settings: Config, links: bool) -> list[TerminalLine]:
    from agent.base.terminal import BAD, DIM, TerminalLine, now_text
    from agent.cli.query import AdminStatusError

    at = TerminalLine(now_text(), DIM)
    try:
        return [at, *drawn(_look(settings, links))]
    except AdminStatusError as error:
        return [at, TerminalLine(str(error), BAD)]


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the status, a fact a line."""
    if status["role"] == "hub":
        yield from _fleet(status["fleet"])
        yield from _trouble(status)
        yield from _links(status.get("links", ()))
        yield from _certificates(status)
        return
    yield f"{status['domain']}: {status['link']['sentence']}"
    if status.get("receipt_key", "") is None:
        yield "  ledger records are not signed: no key of receipts (petiole enrol)"
    if sent := status["link"].get("sent_bytes"):
        arrived = status["link"]["arrived_bytes"]
        yield f"  sent over the link {sent / 1e6:.1f} MB; {arrived / 1e6:.1f} MB are new at the hub"
    if (relay := status.get("relay")) and relay["bridged"]:
        again = relay["resent_bytes"] / 1e6
        yield f"  the link continued after {relay['bridged']} breaks and sent {again:.1f} MB again"
    yield from _trouble(status)
    for _, sentence in _states(status):
        yield f"  {sentence}"
    for name, row in status["classes"].items():
        waiting = max(0, row["last"] - row["confirmed"])
        stored = f"stored up to {row['last']}, {waiting} not confirmed by the hub"
        yield f"  class {name}: {row['state']}; {stored}"
        yield f"    messages in flight: at most {row['in_flight']}"
        yield f"    time to first loss: {_duration(row['seconds_to_loss'])}"
        if gone := row.get("discarded"):
            yield f"    discarded before the hub had them: {_discarded(gone)}"
        if row["state"] != status["link"]["state"]:
            yield f"    {row['sentence']}"
    for row in _removed(status):
        yield f"  {row['sentence']}"
    yield from _links(status["links"])
    if warning := status.get("server", {}).get("warning"):
        yield f"  server: {warning}"
    if warning := status.get("state_warning"):
        yield f"  state: {warning}"
    yield from _certificates(status)
    yield from (f"  {line}" for line in device_lines(status.get("server", {}).get("devices") or {}))


def _certificates(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield expiring or expired certificates."""
    for row in status.get("certificates", ()):
        when = row.get("ends") or row.get("ended") or row.get("begins") or row.get("why")
        yield f"  {row['state']}: {row['certificate']} ({when})"


def _trouble(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the server does not store."""
    if not _stores(status):
        yield f"  server: {status['server']['state']}"


def _states(status: Mapping[str, Any]) -> Iterator[tuple[LeafState, str]]:
    """Yield faults beside the link, gravest first."""
    for word, about in status.get("states", {}).items():
        if (state := state_of(word)) is not LeafState.PAUSED:  # that is the link's own state
            yield state, state.sentence(about)


def device_lines(devices: Mapping[str, Any]) -> Iterator[str]:
    """Yield why MQTT devices are refused."""
    yield from devices.get("problems", ())
    if refused := devices.get("refused"):
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
        last = devices["latest"][-1]
        yield (
            f"MQTT devices refused since {devices['since']}: {counts}; last {last['reason']} "
            f'"{printable(last["what"])}" of client "{printable(last["client"])}" at {last["at"]}'
        )


def _stores(status: Mapping[str, Any]) -> bool:
    return bool(status.get("server", {}).get("stores", True))


def _links(links: Any) -> Iterator[str]:
    for link in links:
        lag = "lag unknown" if link["lag"] is None else f"lag {link['lag']}"
        yield f"  {link['kind']} {link['link']}: {link['state']} ({lag})"


def _discarded(gone: Mapping[str, Any]) -> str:
    doubt = f"; {gone['in_doubt']} messages more, unless the hub has them" if gone["in_doubt"] else ""
    return f"{gone['readings']} readings and {gone['direct']} messages of devices{doubt}"


def _fleet(fleet: Mapping[str, Any]) -> Iterator[str]:
    if not fleet:
        yield "hub: its NATS server has not answered yet"
        return
    yield f"hub: {fleet['state']}"
    for name, aggregate in fleet["aggregates"].items():
        size = f"{aggregate['bytes']} of {aggregate['max_bytes']} bytes"
        yield f"  {name}: {aggregate['sources']} sources, {size}; {aggregate['state']}"
    leaves = fleet["leaves"]
    gravity = list(LeafState)
    for domain, leaf in sorted(leaves.items(), key=lambda item: gravity.index(state_of(item[1]["word"])))[
        :_LISTED
    ]:
        yield f"  {domain}: {leaf['state']}"
    if len(leaves) > _LISTED:
        flowing = sum(leaf["word"] == LeafState.FLOWING for leaf in leaves.values())
        yield f"  {flowing} of {len(leaves)} leaves flow; all of them: petiole fleet"


def exit_code(status: Mapping[str, Any]) -> Exit:
    """Return the exit code. An uncheckable removed class is no fault, since external servers may
    forbid it.
    """
    if not _link_is_well(status) or any(row["checked"] for row in _removed(status)):
        return Exit.LOSS
    found = exit_of(state for state, _ in _states(status))
    down = status["role"] == "leaf" and status["link"]["state"] == "down"
    return Exit.UNREACHABLE if down and found is not Exit.LOSS else found


def _link_is_well(status: Mapping[str, Any]) -> bool:
    if not _stores(status):
        return False
    return status["role"] == "hub" or not status["link"]["attention"]


def _removed(status: Mapping[str, Any]) -> Collection[Mapping[str, Any]]:
    removed: Mapping[str, Mapping[str, Any]] = status.get("removed_classes", {})
    return removed.values()


def _duration(seconds: float | None) -> str:
    """Format a duration; null is infinity."""
    if seconds is None or seconds >= NO_THREAT:
        return "none: the backlog does not grow"
    if seconds < 1:
        return "0: there is no room left"
    return f"about {time_text(seconds)}"
