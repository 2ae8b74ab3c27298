"""A fault environment: machines, links, load and tables, from the first reading to the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path

from nats.errors import Error as NatsError

from agent.contract import DEFAULT_CLASS, HUB_DOMAIN, aggregate, leaf_stream, ledger_subject
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.processes import DemoError
from agent.demo.watch import Observer
from agent.jetstream import JetStreamError
from agent.leaf.link.status import LinkState
from tests.faults.oracle.evidence import Evidence
from tests.faults.oracle.journal import Level
from tests.faults.oracle.judge import Terms, judge
from tests.faults.oracle.verdict import Promise, Verdict
from tests.faults.report import Case
from tests.faults.tools.line import Line
from tests.faults.world.configs import HubSettings, LeafSettings, hub_toml, leaf_toml
from tests.faults.world.injected_faults import InjectedFaults
from tests.faults.world.load import Load, load
from tests.faults.world.machine import Machine
from tests.faults.world.scrape import Scrapes, scrapes
from tests.faults.world.tables import Tables
from tests.faults.world.tcp_proxy import Link, tcp_proxy
from tests.harness.wait import wait_for

_POLL_SECONDS = 0.1


class FaultEnvironment:
    """A hub and leaves whose devices send. Hurt what you like, mend it, and ask for the `verdict`."""

    def __init__(
        self,
        case: Case,
        hub: Machine,
        leaves: Sequence[Machine],
        link: Link,
        load: Load,
        scrapes: Scrapes,
        classes: Sequence[str] = (DEFAULT_CLASS,),
    ) -> None:
        self.case, self.hub, self.leaves, self.link, self.load = case, hub, leaves, link, load
        self.classes = classes
        self.tables = Tables(hub.member, hub.member.directory.parent / "lake")
        self._scrapes = scrapes

    @property
    def leaf(self) -> Machine:
        """The first leaf."""
        return self.leaves[0]

    @property
    def injected(self) -> InjectedFaults:
        """Every fault that was made."""
        return self.hub.injected

    def lasts(self, seconds: float) -> None:
        """Let a fault last."""
        time.sleep(seconds)

    def noticed(self, seconds: float = 90.0) -> None:
        """Return when the last fault has left its trace."""
        last = self.injected.made[-1]
        seen = f"{last.what}: something is seen of it"
        wait_for(lambda: last.trace(last.at) is not None, seen, seconds)

    def mended(self, seconds: float = 90.0) -> None:
        """Return when every link flows and the hub holds what each leaf holds by now; that is how long the
        recovery took, from the last fault or mending on."""
        since = self.injected.last
        for leaf in self.leaves:
            leaf.wait_ready()
        now = self._held_now(seconds)

        def recovered() -> bool:
            return all(map(link_flows, self.leaves)) and self._at_hub(now)

        wait_for(recovered, "every link flows and the hub holds what came meanwhile", seconds)
        self.case.recover_seconds = round(time.monotonic() - since, 2)
        self.case.detect_seconds = self._detected()

    def last(self, machine: Machine, seconds: float = 90.0, cls: str = DEFAULT_CLASS) -> int:
        """The last sequence of a machine's stream, asked until it is answered."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return asyncio.run(_observer(machine).last(stream_of(machine, cls)))
            except DemoError:
                assert time.monotonic() < deadline, f"the server of {machine.member.domain} does not answer"
                time.sleep(_POLL_SECONDS)

    def newest(self, machine: Machine, subject: str, cls: str = DEFAULT_CLASS) -> bytes | None:
        """The newest message of a subject in a machine's stream; None while its server does not answer."""
        try:
            return asyncio.run(_observer(machine).newest(stream_of(machine, cls), subject))
        except (NatsError, JetStreamError, OSError, TimeoutError):
            return None

    def at_hub(self) -> int:
        """The last sequence of the hub's stream, 0 while its server does not answer."""
        try:
            return asyncio.run(_observer(self.hub).last(stream_of(self.hub)))
        except DemoError:
            return 0

    def verdict(self, terms: Terms | None = None) -> Verdict:
        """End the load and the runs, bring all into the tables, and judge. Fails the test with a sentence for
        each promise that was broken, and for each fault that did not happen."""
        terms = terms or Terms()
        stuck = self.load.stop(terms.seconds)
        drained = self._drained(terms.seconds)
        self._scrapes.at_rest()
        unseen = self.injected.unseen()
        for leaf in self.leaves:
            assert leaf.end_well() == 0, f"the agent of {leaf.member.domain} does not end well"
        for leaf, cls in product(self.leaves, self.classes):
            wait_for(partial(self._closed, leaf, cls), f"the last record of {leaf.member.domain} arrives")
        self.tables.ingest()
        self.tables.refine()
        said = self.tables.audit()
        found = Evidence(
            self.tables.readings(),
            self.tables.quarantine(),
            said,
            self.tables.ledgers(),
            self._scrapes.found,
            drained,
        )
        verdict = judge(self.load.journal, found, terms)
        for name in stuck:
            verdict.broken(Promise.LIVENESS, f"{name} was not answered for {terms.seconds:.0f} s")
        for sentence in self.load.notes.wrong[:3]:
            verdict.broken(Promise.HONESTY, f"a good request was answered {sentence}")
        for what in unseen:
            verdict.broken(Promise.FAULT, f"no trace is found of this: {what}")
        self._report(verdict, said.findings)
        assert verdict.kept, f"\n{verdict}"
        return verdict

    def _report(self, verdict: Verdict, findings: Sequence[str]) -> None:
        case = self.case
        case.sent, case.acknowledged = verdict.sent, verdict.acknowledged
        case.lost, case.duplicates, case.named = verdict.lost, verdict.doubled, verdict.named
        if verdict.unseen:
            case.saw(f"{verdict.unseen} readings that devices published after the last look nobody names")
        case.seen += [f"audit: {one}" for one in findings[:5]]
        case.seen += [str(one) for one in verdict.violations]

    def _drained(self, seconds: float) -> float | None:
        began = time.monotonic()
        try:
            last = self._held_now(seconds)
            wait_for(lambda: self._at_hub(last), "the hub holds all", seconds)
        except AssertionError:
            return None
        return time.monotonic() - began

    def _detected(self) -> float | None:
        """Seconds from the first fault until a leaf told another state of its link."""
        first = self.injected.made[0].at if self.injected.made else time.time()
        told = [
            at - first
            for leaf in self.leaves
            for at, state in leaf.link_told(first)
            if state != LinkState.FLOWING
        ]
        return round(min(told), 2) if told else None

    def _held_now(self, seconds: float) -> dict[str, int]:
        """The last sequence of each stream of each leaf."""
        streams = product(self.leaves, self.classes)
        return {stream_of(leaf, cls): self.last(leaf, seconds, cls) for leaf, cls in streams}

    def _at_hub(self, wanted: Mapping[str, int]) -> bool:
        """Whether the hub holds these streams up to there."""
        cursors = asyncio.run(_observer(self.hub).cursors()) or {}
        return all(cursors.get(stream, 0) >= last for stream, last in wanted.items())

    def _closed(self, leaf: Machine, cls: str) -> bool:
        """Whether the hub has the last record of the leaf's last run, before which all else of its stream
        stands."""
        subject = ledger_subject(leaf.member.domain, cls)
        here, there = self.newest(leaf, subject, cls), self.newest(self.hub, subject)
        return here is not None and here == there


@contextmanager
def open_environment(
    directory: Path,
    case: Case,
    *,
    leaves: int = 1,
    devices: int = 3,
    size: int = 10,
    pace: float = 0.05,
    scheme: str = "nats-leaf",
    direct: bool = True,
    line: Line | None = None,
    leaf: LeafSettings | None = None,
    hub: HubSettings | None = None,
) -> Iterator[FaultEnvironment]:
    """A hub with so many leaves, `edge-1` and on, whose links flow. Each has `devices` that post `size`
    readings at a time and, with `direct`, one that publishes to its server. The links are relays, or the
    `line`."""
    leaf_settings, hub_settings = leaf or LeafSettings(), hub or HubSettings()
    injected = InjectedFaults(case)
    with ExitStack() as stack:
        listen = line.listen if line else f"127.0.0.1:{free_port()}"
        proxy = line or stack.enter_context(tcp_proxy(int(listen.rpartition(":")[2])))
        machines = [
            Machine(
                member, leaf_toml(member, f"{scheme}://{proxy.host}:{proxy.port}", leaf_settings), injected
            )
            for member in (plan.member(directory, f"edge-{number}") for number in range(1, leaves + 1))
        ]
        enrolled = [one.petiole("enrol").stdout for one in machines]
        member = plan.member(directory, "hub")
        centre = Machine(member, hub_toml(member, listen, enrolled, hub_settings), injected)
        for one in (centre, *machines):
            stack.callback(one.close)
            one.begin()
        for one in (centre, *machines):
            one.wait_ready()
        wait_for(lambda: all(map(link_flows, machines)), "every link flows")
        sending = stack.enter_context(load())
        looking = stack.enter_context(scrapes(machines))
        injected.observers.insert(0, sending.notes.since)
        for one in machines:
            for number in range(1, devices + 1):
                level = Level(leaf_settings.ack)
                sending.over_http(one.member, f"pump-{number}", level, size=size, pace=pace)
            if direct:
                sending.direct(one.member, "press-1")
        environment = FaultEnvironment(
            case, centre, machines, Link(proxy, injected, machines), sending, looking
        )
        sending.flows()
        yield environment


def _observer(machine: Machine) -> Observer:
    one = machine.member
    key, identity = ("jobs", "jobs") if one.domain == HUB_DOMAIN else ("agent", one.domain)
    return Observer([one.nats_url], one.state / "keys" / f"{key}.nk", identity)


def stream_of(machine: Machine, cls: str = DEFAULT_CLASS) -> str:
    """The stream of a leaf, or that of the hub."""
    domain = machine.member.domain
    return aggregate(0) if domain == HUB_DOMAIN else leaf_stream(domain, cls)


def link_flows(leaf: Machine) -> bool:
    """Whether a leaf says that its link flows."""
    try:
        return bool(leaf.status()["link"]["state"] == LinkState.FLOWING)
    except OSError:
        return False
