"""Queries the running agent, and judges its link and time to loss."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from agent.base.logs import time_text
from agent.cli.checks import Cause, Finding, Group
from agent.cli.query import WHETHER_IT_RUNS, AdminStatusError, input_states, status_of
from agent.cli.status import device_lines
from agent.config import Config
from agent.contract import Exit
from agent.leaf.link.status import LinkState

AGENT: Final = Group("agent")
INPUTS: Final = Group("inputs")
LINK: Final = Group("link")
LOSS: Final = Group("loss")
HUB: Final = Group("hub")
RECEIPTS: Final = Group("receipts")
DEVICES: Final = Group("mqtt")
_FLOWING: Final = "flowing"
_SHOWN: Final = 20
_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
_REMEDIES: Final[Mapping[str, str]] = {
    LinkState.DOWN: "restore the network to the hub; what is stored here flows by itself then",
    LinkState.UNVERIFIED: "start `petiole run` on the hub, or see its log",
    LinkState.FULL: "run ingest on the hub, or raise registrar.max_bytes there",
    LinkState.NOT_ARRIVING: "lower publish.batch_bytes, and send smaller bodies",
    LinkState.DISCARDED: "raise max_bytes of the class; the audit names what went",
    LinkState.UNHEARD: "give the hub's user of this leaf what is named, and restart its server",
    LinkState.STUCK: "give the hub's user of this leaf what is named, and restart its server",
    LinkState.CONTESTED: "stop the other machine, or give it a domain and a key of its own (petiole enrol)",
    LinkState.REFUSED: "do on the hub what the sentence says",
    LinkState.AWAY: "see what is said of the server",
}
_CAUSES: Final[Mapping[str, tuple[Cause, ...]]] = {
    LinkState.DOWN: (Cause.HUB, Cause.SERVER, Cause.CLOCK),
    LinkState.UNVERIFIED: (Cause.REGISTRAR,),
    LinkState.UNHEARD: (Cause.PERMISSIONS,),
    LinkState.STUCK: (Cause.PERMISSIONS,),
    LinkState.AWAY: (Cause.SERVER, Cause.DISK),
}
"""Findings that explain a state."""
_WAIT: Final = "wait; it ends by itself"


async def ask(config: Config) -> Mapping[str, Any] | str:
    """Return `/status` with stopped inputs in `down`, or why there is none."""
    try:
        status = await asyncio.to_thread(status_of, config)
        states = await asyncio.to_thread(input_states, config) if config.role == "leaf" else {}
    except AdminStatusError as error:
        return str(error).removesuffix(f"; {WHETHER_IT_RUNS}")
    return {**status, "down": sorted(name for name in status.get("inputs", ()) if states.get(name) is False)}


def judge(status: Mapping[str, Any] | str, explained: Collection[str] = ()) -> Iterator[Finding]:
    """Judge the status; `explained` inputs have other findings."""
    if isinstance(status, str):
        start = "start it (systemctl start petiole, or petiole run) and see its log"
        if "timed out" in status:
            start = "it hangs or is stopped: see `ps`, end it by SIGKILL and start it again"
        yield AGENT.failure(status, start, Exit.UNREACHABLE).causing(Cause.AGENT)
        return
    yield AGENT.ok(f"the agent of {status.get('domain')} runs")
    if problem := status.get("state_problem"):
        yield AGENT.failure(
            f"the agent cannot write its state ({problem}): after a crash it sends again what the hub has",
            "let the agent's user write in state_dir, and see the room and the mount of its file system",
        ).after(Cause.DISK)
    if status.get("receipt_key", "") is None:
        yield RECEIPTS.warning(
            "ledger records are not signed, so receipts prove nothing by this leaf's key",
            "run `petiole enrol`, give the table to the hub, and restart the agent",
        )
    if status["role"] == "leaf":
        yield from _link(status.get("link") or {})
        yield from _inputs(status, explained)
        for name, row in (status.get("classes") or {}).items():
            yield _loss(name, row)
        for link in status.get("links") or ():
            yield from _declared(link)
        yield from _devices((status.get("server") or {}).get("devices") or {})
    else:
        yield from _fleet(status.get("fleet") or {})


def _link(link: Mapping[str, Any]) -> Iterator[Finding]:
    state, sentence = str(link.get("state")), str(link.get("sentence"))
    if link.get("attention"):
        code = Exit.CONFLICT if state == LinkState.CONTESTED else Exit.FAILED
        code = Exit.LOSS if state == LinkState.DISCARDED else code
        finding = LINK.failure(sentence, _REMEDIES.get(state, "see docs/link.md"), code)
        yield finding.after(*_CAUSES.get(state, ()))
    elif state in _REMEDIES:
        yield LINK.warning(sentence, _REMEDIES[state]).after(*_CAUSES.get(state, ()))
    elif state in (LinkState.REPAIRING, LinkState.POSTPONED, LinkState.CAPPED):
        yield LINK.warning(sentence, _WAIT)
    else:
        yield LINK.ok(sentence)


def _inputs(status: Mapping[str, Any], explained: Collection[str]) -> Iterator[Finding]:
    """Yield stopped or failing inputs with their last warning."""
    down, warnings = status.get("down") or (), status.get("input_warnings") or {}
    for name in (name for name in down if name not in explained):
        why = f": {warnings[name]}" if name in warnings else ""
        remedy = "mend what its warning names; the agent's log has the rest, and it is retried by itself"
        yield INPUTS.failure(f"input {name} is down{why}", remedy).after(Cause.SERVER, Cause.DISK)
    if (names := status.get("inputs")) and not down:
        yield INPUTS.ok(f"{len(names)} of {len(names)} inputs run")


def _loss(name: str, row: Mapping[str, Any]) -> Finding:
    seconds = row.get("seconds_to_loss")
    if seconds is None or seconds == float("inf"):
        return LOSS.ok(f"class {name} loses nothing as things go")
    remedy = f"restore the link, or give class {name} more room: max_bytes, nats.max_file_store, or the disk"
    if seconds <= 0:
        return LOSS.failure(f"class {name} is full: readings are refused or discarded now", remedy, Exit.LOSS)
    sentence = f"class {name} loses its first reading in {time_text(seconds)}, as things go"
    if seconds < _HOUR:
        return LOSS.failure(sentence, remedy)
    return LOSS.warning(sentence, remedy) if seconds < _DAY else LOSS.ok(sentence)


def _devices(devices: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what refuses MQTT devices."""
    for problem in devices.get("problems") or ():
        yield DEVICES.failure(str(problem), "do what is said; the agent lets them in by itself then")
    for sentence in device_lines({**devices, "problems": ()}):
        yield DEVICES.warning(sentence, "correct the device: docs/inputs/mqtt.md says what it may send")


def _declared(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield faults of a mirror or source."""
    if not row.get("up", True):
        sentence = f"{row.get('kind')} {row.get('link')}: {row.get('state')}"
        finding = LINK.warning(sentence, "look the sentence up in Petiole's docs/client.md")
        yield finding.after(Cause.HUB, Cause.REGISTRAR, Cause.SERVER, Cause.DISK, Cause.CLOCK)


def _fleet(fleet: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the registrar's faults of streams and leaves."""
    if not fleet:
        finding = HUB.failure(
            "the registrar has not reached its server yet", "see what is said of the server"
        )
        yield finding.after(Cause.SERVER, Cause.DISK)
        return
    if fleet.get("standby"):
        yield HUB.ok(f"{fleet.get('state')}; run `petiole check` there for the leaves")
        return
    if (state := fleet.get("state")) != "well":
        yield HUB.failure(f"{state}", "see the log of the hub's agent")
    for name, aggregate in (fleet.get("aggregates") or {}).items():
        if aggregate.get("full"):
            remedy = "run ingest, or raise registrar.max_bytes"
            yield LOSS.failure(f"{name} is full: every leaf waits, and fills next", remedy)
        else:
            yield LOSS.ok(f"{name}: {aggregate.get('state') or 'has room'}")
    leaves = {domain: str(leaf.get("state")) for domain, leaf in (fleet.get("leaves") or {}).items()}
    others = {domain: state for domain, state in leaves.items() if state != _FLOWING}
    yield HUB.ok(f"{len(leaves) - len(others)} of {len(leaves)} leaves flow")
    for domain, state in list(others.items())[:_SHOWN]:
        yield HUB.warning(f"{domain}: {state}", f"run `petiole check` on {domain}")
    if len(others) > _SHOWN:
        yield HUB.warning(f"{len(others) - _SHOWN} leaves more do not flow", "see `petiole status`")
