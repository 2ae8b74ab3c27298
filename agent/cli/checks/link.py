"""Judges the answers of dialled hub addresses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agent import contract
from agent.cli.checks import Cause, Finding, Group, Level, permissions
from agent.cli.checks.leafnode_probe import Joined
from agent.cli.checks.server import judge_version
from agent.contract import Exit
from agent.server.dialling import Greeted, Nowhere
from agent.server.joining import CLIENT_PORT, SILENCE, TOO_OLD, UNKNOWN_KEY, Dialled, LeafRefused, shown
from agent.server.permissions import Permissions

GROUP: Final = Group("link")
_HANGS: Final = ("says nothing", "nothing answers")


def judge(
    domain: str, classes: Sequence[str], needed: Permissions, dialled: Sequence[Dialled], *, linked: bool
) -> list[Finding]:
    """Judge each hub address, and permissions once. With a link (`linked`) a failing address is no link
    failure.
    """
    findings = [finding for probe in dialled for finding in _address(domain, probe)]
    spare = linked or any(isinstance(probe.outcome, Joined) for probe in dialled)
    if spare:
        findings = [_beside_a_link(finding, linked) for finding in findings]
    if (joined := first_joined(dialled)) is not None:
        findings += permissions.on_the_hub(domain, classes, needed, joined.info)
        findings += _tried(domain, needed, joined)
    return findings


def first_joined(dialled: Sequence[Dialled]) -> Joined | None:
    """Return the first address that accepted this leaf."""
    return next((probe.outcome for probe in dialled if isinstance(probe.outcome, Joined)), None)


def first_greeting(dialled: Sequence[Dialled]) -> Mapping[str, Any] | None:
    return next((probe.greeting.info for probe in dialled if isinstance(probe.greeting, Greeted)), None)


def ahead(joined: Joined) -> tuple[float, float] | None:
    """Return this clock's lead over the hub's in seconds, and the error."""
    if not joined.traces:
        return None
    theirs = min(trace.time for trace in joined.traces.values())
    half = (joined.answered - joined.asked) / 2
    return joined.asked + half - theirs, half


def servers_of_domain(domain: str, joined: Joined) -> list[str]:
    """Return the servers that would answer for this domain."""
    trace = joined.traces.get(question(domain))
    return [] if trace is None else sorted(trace.links)


def question(domain: str) -> str:
    """Return a question to a domain's JetStream."""
    return f"{contract.api_prefix(domain)}.INFO"


def _address(domain: str, probe: Dialled) -> Iterator[Finding]:
    where = shown(probe.url)
    if isinstance(probe.greeting, Nowhere):
        finding = GROUP.failure(f"{where}: {probe.greeting.why}", probe.greeting.remedy, Exit.UNREACHABLE)
        if any(word in probe.greeting.why for word in ("expired", "not yet valid")):
            finding = finding.after(Cause.CERTIFICATE, Cause.CLOCK)
        yield finding.causing(Cause.HUB)
        return
    for address, dead in probe.dead.items():
        if "unreachable" not in dead.why:  # such as IPv6 on a machine without it
            yield GROUP.warning(
                f"{where}: of the addresses of this name {address} fails, and the leaf's server dials any of "
                f"them: {dead.why}",
                f"take {address} out of the name (DNS), or mend it: {dead.remedy}",
            )
    yield judge_version(f"the hub at {where}", str(probe.greeting.info.get("version")))
    if isinstance(probe.outcome, Joined):
        yield GROUP.ok(f"the hub at {where} knows this leaf's key")
    elif isinstance(probe.outcome, LeafRefused) and probe.outcome.why == CLIENT_PORT:
        yield GROUP.failure(
            f"{where} is the port for clients of the hub's server, and leaves dial another",
            "write the port of leaf_listen (7422 unless the hub says otherwise) into nats.hub_urls",
        ).causing(Cause.HUB)
    elif isinstance(probe.outcome, LeafRefused) and probe.outcome.why == UNKNOWN_KEY:
        yield GROUP.failure(
            f"the hub at {where} does not know this leaf's key ({UNKNOWN_KEY})",
            f"put the [[leaf]] table of {domain} that `petiole enrol` prints into the hub's configuration, "
            "and start its agent",
        ).causing(Cause.HUB)
    elif isinstance(probe.outcome, LeafRefused) and probe.outcome.why == TOO_OLD:
        return  # which its version has said
    elif isinstance(probe.outcome, LeafRefused):
        code = Exit.UNREACHABLE if probe.outcome.why == SILENCE else Exit.FAILED
        sentence = f"the hub at {where} does not let this leaf in: {probe.outcome.why}"
        remedy = probe.outcome.remedy or "see the log of the hub's server"
        yield GROUP.failure(sentence, remedy, code).causing(Cause.HUB)
    else:
        yield GROUP.warning(
            f"what the hub at {where} lets this leaf do is not known, for its key is not there",
            "name the key in nats.link_seed_file, or start the agent once, which makes it",
        )


def _beside_a_link(finding: Finding, linked: bool) -> Finding:
    """Soften a failing address beside a working link. A hanging hub keeps links for seconds."""
    if finding.level is not Level.FAILURE or any(word in finding.sentence for word in _HANGS):
        return finding
    but = "the link is up all the same" if linked else "another address lets this leaf in"
    return GROUP.warning(f"{finding.sentence}; {but}", finding.remedy)


def _tried(domain: str, needed: Permissions, joined: Joined) -> Iterator[Finding]:
    """Compare tried with granted permissions."""
    for refusal in joined.refused:
        yield permissions.GROUP.failure(
            f"the hub refused what it had said it allows: {refusal}", "restart the hub's server"
        )
    trace = joined.traces.get(contract.announce_subject(domain))
    if trace is None:
        return
    if trace.heard_by:
        yield GROUP.ok("the hub's registrar listens")
    else:
        yield GROUP.failure(
            "the hub's registrar does not run: announcements have no listener",
            "start `petiole run` on the hub",
        ).causing(Cause.REGISTRAR)
