"""Compares needed with granted permissions, and names the effect of missing ones. Pure.

A missing link permission causes silence without log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from agent.base.nats_server import subject_covers, subjects_overlap
from agent.cli.checks import Cause, Finding, Group
from agent.contract import ACCOUNT, COMMANDS, announce_subject, deliver_subject, inbox_prefix, leaf_stream
from agent.server.link_permissions import answers_to_hub, leaf_inbox
from agent.server.permissions import Permissions

GROUP: Final = Group("permissions")
PROBE: Final = "petiole-check"
"""Replaces wildcards; no real name equals it."""

Side = Literal["publish", "subscribe"]
_INFO_LIST: Final[Mapping[str, Side]] = {"export": "publish", "import": "subscribe"}
"""INFO fields with a leaf's permissions (nats-server 2.15.1)."""


def sample(subject: str) -> str:
    """Return an unused literal subject of a permission."""
    return ".".join(PROBE if token in ("*", ">") else token for token in subject.split("."))


def is_granted(info: Mapping[str, Any], side: Side, needed: str) -> bool:
    """Tell whether a hub's INFO allows a subject."""
    name = next(name for name, listed in _INFO_LIST.items() if listed == side)
    lists = info.get(name) or {}
    allow, deny = lists.get("allow") or (), lists.get("deny") or ()
    if any(subjects_overlap(subject, needed) for subject in deny):
        return False
    return not allow or any(subject_covers(subject, needed) for subject in allow)


def on_the_hub(
    domain: str, classes: Sequence[str], needed: Permissions, info: Mapping[str, Any]
) -> list[Finding]:
    """Yield missing permissions of this leaf's hub user by INFO."""
    sides: tuple[tuple[Side, tuple[str, ...]], ...] = (
        ("publish", needed.publish),
        ("subscribe", needed.subscribe),
    )
    lacking = [
        (side, subject)
        for side, subjects in sides
        for subject in subjects
        if not is_granted(info, side, subject)
    ]
    findings: list[Finding] = []
    if any(is_granted(info, "publish", deliver_subject(domain, cls, "*")) for cls in classes):
        for cls in classes:
            of_class = [(side, subject) for side, subject in lacking if _is_of_class(subject, domain, cls)]
            if len(of_class) == sum(
                _is_of_class(subject, domain, cls) for _, many in sides for subject in many
            ):
                findings.append(_unknown_class(domain, cls))
                lacking = [subject for subject in lacking if subject not in of_class]
    findings += [_lacking(domain, side, subject) for side, subject in lacking]
    if not findings:
        count = sum(len(subjects) for _, subjects in sides)
        findings = [GROUP.ok(f"the hub's user of this leaf has all {count} permissions of the link")]
    return findings


def _is_of_class(subject: str, domain: str, cls: str) -> bool:
    tokens = subject.split(".")
    return leaf_stream(domain, cls) in tokens or subject == deliver_subject(domain, cls, "*")


def _unknown_class(domain: str, cls: str) -> Finding:
    return GROUP.failure(
        f"the hub does not let class {cls} of this leaf in",
        f'on the hub, add "{cls}" to classes of the [[leaf]] table of {domain} and start its agent; here, '
        "stop the server once (petiole server stop) and start the agent",
    )


def _lacking(domain: str, side: Side, subject: str) -> Finding:
    effect, serious = _effect(domain, side, subject)
    sentence = f"the hub's user of this leaf may not {side} {subject}: {effect}"
    remedy = (
        f'on the hub, add "{subject}" to permissions.{side}.allow of that user (petiole renders it: upgrade '
        "it there), and restart its server: a reload does not reach links"
    )
    if not serious:
        return GROUP.warning(sentence, remedy)
    return GROUP.failure(sentence, remedy).causing(Cause.PERMISSIONS)


def _effect(domain: str, side: Side, subject: str) -> tuple[str, bool]:
    """Return a missing permission's effect, and whether the link fails."""
    if subject == announce_subject(domain):
        return "the hub does not learn of this leaf and reads nothing from it", True
    if subject.startswith("petiole.deliver."):
        return "nothing that is stored here arrives", True
    if subject in ("$JSC.R.*", "_R_.>"):
        return "nothing flows, in either direction", True
    if subject == answers_to_hub(domain):
        return (
            "with the feature flag js_api_reply_v2 at the hub's server nothing flows, and without it what it"
            " asks other leaves crosses this link, too"
        ), False
    if subject == f"{inbox_prefix(domain)}.>":
        return "the hub's answers do not arrive", True
    if COMMANDS in subject or subject.startswith("petiole.command."):
        return "commands do not arrive", True
    if subject.startswith("$JS.FC."):
        return "the flow stops after some thousand messages", True
    if ".CONSUMER.RESET." in subject:
        return "the hub cannot begin to read what is stored here", True
    if side == "subscribe" or subject == f"{leaf_inbox(domain)}.>":
        return "the hub cannot look how far it is behind", False
    return "acknowledgements at level hub and `petiole resend --missing` do not work", False


def violated(subject: str, refusals: Collection[str]) -> bool:
    """Tell whether a lower-cased refusal names this subject."""
    return any(f'"{subject.lower()}"' in refusal.lower() for refusal in refusals)


def at_home(
    needed: Permissions, refusals: Collection[str], destination: str, *, embedded: bool
) -> Iterator[Finding]:
    """Yield missing permissions of the agent's local user. `destination` receives traces."""
    tried: list[tuple[Side, str]] = [("subscribe", subject) for subject in needed.subscribe]
    tried += [("publish", subject) for subject in needed.publish]
    lacking = [(side, subject) for side, subject in tried if violated(sample(subject), refusals)]
    if violated(destination, refusals):
        lacking.append(
            ("publish", next(subject for subject in needed.publish if subject_covers(subject, destination)))
        )
    for side, subject in dict.fromkeys(lacking):
        yield GROUP.failure(
            f"the agent's user may not {side} {subject} on the local server",
            _local_remedy(side, subject, embedded),
        )
    if not lacking:
        yield GROUP.ok(f"the agent's user has all {len(tried)} permissions on the local server")


def _local_remedy(side: Side, subject: str, embedded: bool) -> str:
    if embedded:
        return "restart the agent, which renders its server's configuration again"
    return f'add "{subject}" to permissions.{side}.allow of that user and reload the local server'


def of_system(unanswered: Iterable[str], embedded: bool) -> Iterator[Finding]:
    """Yield missing permissions of the system user."""
    for question in unanswered:
        subject = f"$SYS.REQ.SERVER.PING.{question}"
        yield GROUP.failure(
            f"the user of the system account is not answered on {subject}, so the agent does not see "
            f"{_SEEN_BY[question]}",
            _local_remedy("publish", subject, embedded),
        )


_SEEN_BY: Final = {
    "VARZ": "whether the server syncs",
    "HEALTHZ": "whether the server has stopped writing",
    "LEAFZ": f"whether the link of {ACCOUNT} is up",
}
