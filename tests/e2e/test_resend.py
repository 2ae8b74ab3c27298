"""`petiole resend` brings back what the hub has lost, and nothing else; the leaf's own books do not move."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.cli.resend import ResendReport, ResendRequest, resend
from agent.cli.resend import stream as resend_stream
from agent.config import Config, Size, StreamClass
from agent.contract import H_MESSAGE_ID, H_POSITION, H_REQUESTS, H_RESENT, Exit, MessageId, direct_subject
from agent.contract.ranges import Ranges
from agent.hub.registrar import verify as registrar_verify
from agent.jetstream import JetStream
from agent.leaf import stream_configs
from agent.leaf.intake import RefusedError
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.registrar import HubHand, held_ids, lose, losing_world
from tests.harness.servers import ServerPair
from tests.harness.wait import until

MISSING = ResendRequest(CLASS, missing=True)


@pytest_asyncio.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerPair]:
    """A leaf and a hub that can lose messages."""
    monkeypatch.setattr(stream_configs, "DUPLICATE_WINDOW_NS", 100_000_000)
    monkeypatch.setattr(resend_stream, "_AGAIN_SECONDS", 0.05)
    async with losing_world(tmp_path, monkeypatch, "edge-1") as one:
        yield one


class Told:
    """What a run of the command said on the way."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def resend(self, config: Config, asked: ResendRequest = MISSING) -> ResendReport:
        return await resend(config, asked, self.said.append)


async def store(one: Agent, first: int, last: int) -> None:
    """A batch for each number, which its one reading tells."""
    for number in range(first, last + 1):
        await one.submit(chunk(str(number), key=f"k{number}", position=f"p{number}"), "tail")


async def arrived(hub: HubHand, probe: StreamProbe) -> None:
    """Return when all that the leaf holds has come to the hub."""
    await hub.holds(probe.domain, (await probe.js.stream_info(probe.stream)).last)


async def lose_batches(hub: HubHand, run: str, *numbers: int) -> None:
    ids = {str(MessageId(run, CLASS, n)) for n in numbers}
    seqs = [seq for seq, ident in (await held_ids(hub)).items() if ident in ids]
    assert len(seqs) == len(numbers)
    await lose(hub, *seqs)


async def batches_at(hub: HubHand, run: str) -> list[int]:
    """The numbers of a run that the hub holds, each as often as it does."""
    prefix = f"{run}-{CLASS}-"
    tails = [
        ident.removeprefix(prefix) for ident in (await held_ids(hub)).values() if ident.startswith(prefix)
    ]
    return sorted(int(tail) for tail in tails if tail.isdigit())


def sent(report: ResendReport) -> dict[str, Ranges]:
    """The numbers that were sent, by run."""
    return {one.plan.run: found for one in report.runs if (found := one.numbers().get("sent", ()))}


async def test_what_the_hub_lost_is_brought_back_while_the_agent_runs_and_nothing_else(
    hub: HubHand, probe: StreamProbe, config: Config
) -> None:
    told = Told()
    async with hub.registrar(), agent(config) as one:
        await store(one, 1, 10)
        await arrived(hub, probe)
        assert (await told.resend(config)).exit is Exit.WELL
        assert sent(await told.resend(config)) == {}
        await lose_batches(hub, one.run, 3, 4, 10)

        plan = await told.resend(config, ResendRequest(CLASS, missing=True, dry_run=True))
        assert plan.runs[0].numbers()["to_send"] == ((3, 4), (10, 10))
        report = await told.resend(config)
        assert (report.exit, sent(report)) == (Exit.WELL, {one.run: ((3, 4), (10, 10))})
        await arrived(hub, probe)
        assert await batches_at(hub, one.run) == list(range(1, 11))
        assert sent(await told.resend(config)) == {}

        await store(one, 11, 12)
        await arrived(hub, probe)
        assert await batches_at(hub, one.run) == list(range(1, 13))
        assert one.leaf.status()["classes"][CLASS]["readings"]["stored"] == 12
        assert (await one.leaf.intake.position("tail")).position == "p12"
    held = await probe.messages()
    again = [message for message in held if H_RESENT in message.headers]
    first = {message.headers["Nats-Msg-Id"]: message for message in held if H_RESENT not in message.headers}
    assert len(again) == 3
    for message in again:
        original = first[message.headers["Nats-Msg-Id"]]
        assert (message.subject, message.data) == (original.subject, original.data)
        assert message.headers[H_RESENT] == str(original.seq)
        assert not {H_POSITION, H_REQUESTS} & message.headers.keys()


async def test_a_resent_batch_moves_no_input_back_and_is_not_counted_twice_by_the_next_run(
    probe: StreamProbe, config: Config
) -> None:
    told = Told()
    async with agent(config) as one:
        await store(one, 1, 4)
        before = one.leaf.status()["classes"][CLASS]["readings"]
        await one.crash()
    await asyncio.sleep(0.1)  # the duplicate window
    report = await told.resend(config, ResendRequest(CLASS, first=1, last=2))
    assert (report.exit, sent(report)) == (Exit.WELL, {one.run: ((1, 2),)})
    assert len(await probe.batches()) == 6
    for state in ("kept", "lost"):
        if state == "lost":
            (config.state_dir / "state.json").unlink()
        async with agent(config) as two:
            assert (await two.leaf.intake.position("tail")).position == "p4"
            previous = two.leaf._ledger_publisher._ledgers[CLASS].previous
            assert state == "lost" or (previous is not None and previous.readings.stored == before["stored"])
            if state == "kept":
                # Only the stream knows the last position when the state file is older than it.
                progress = await (await two.leaf._recovery.get()).progress("tail", [CLASS], {})
                assert progress is not None
                assert progress.position == "p4"


async def test_what_the_stream_still_drops_as_a_repeat_is_waited_for(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_configs, "DUPLICATE_WINDOW_NS", 5_000_000_000)
    told = Told()
    async with agent(config) as one:
        await store(one, 1, 2)
        report = await told.resend(config, ResendRequest(CLASS, first=1))
        assert (report.exit, sent(report)) == (Exit.WELL, {one.run: ((1, 2),)})
        assert len(told.said) == 1
        assert "stored less than 5 s ago" in told.said[0]
        first, second, *again = [batch.id.n for batch in await probe.batches()]
        assert (first, second, sorted(again)) == (1, 2, [1, 2]), "a dropped one comes after the others"

        with monkeypatch.context() as hasty:
            hasty.setattr(resend_stream, "_LONGEST_WINDOW", 0.1)
            report = await told.resend(config, ResendRequest(CLASS, first=2))
        assert report.exit is Exit.FAILED
        assert report.runs[0].numbers()["repeated"] == ((2, 2),)
        assert "still knows their ids" in report.as_text()


async def test_what_a_device_published_under_the_id_of_a_batch_is_not_its_repeat(
    servers: ServerPair, hub: HubHand, probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_configs, "DUPLICATE_WINDOW_NS", 1_000_000_000)
    told = Told()
    device = JetStream(await servers.leaf.connect("device"))
    subject = direct_subject(probe.domain, CLASS, "pump", "bar")
    async with hub.registrar(), agent(config) as one:
        await store(one, 1, 3)
        await arrived(hub, probe)
        await lose_batches(hub, one.run, 2)
        forged = {H_MESSAGE_ID: str(MessageId(one.run, CLASS, 2))}

        async def is_stored() -> bool:
            return not (await device.publish_ack(subject, b"1", forged)).duplicate

        await until(is_stored, "the device has taken the id")
        report = await told.resend(config)
        assert (report.exit, sent(report)) == (Exit.WELL, {one.run: ((2, 2),)})
        assert [batch.id.n for batch in await probe.batches()] == [1, 2, 3, 2]


async def test_a_full_stream_refuses_and_that_is_said(servers: ServerPair, tmp_path: Path) -> None:
    small = leaf_config(servers.leaf, tmp_path / "state", QUICK, StreamClass(max_bytes=Size(64 * 1024)))
    told = Told()
    async with agent(small) as one:
        await store(one, 1, 3)
        with pytest.raises(RefusedError):
            await store(one, 4, 1_000)
        await asyncio.sleep(0.1)  # the duplicate window
        report = await told.resend(small, ResendRequest(CLASS, first=1))
    assert report.exit is Exit.FAILED
    found = report.runs[0].numbers()
    assert found["not_sent"]
    assert found["not_sent"][0][0] <= 3
    assert "the stream refuses: maximum bytes exceeded" in report.as_text()


async def test_without_the_hub_the_missing_cannot_be_told(
    servers: ServerPair, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend_stream, "_ANSWER_SECONDS", 0.5)
    async with agent(config) as one:
        await store(one, 1, 1)
        report = await Told().resend(config)
    assert (report.exit, report.failure) == (
        Exit.UNREACHABLE,
        "the hub does not answer: the link is down or its registrar does not run",
    )


async def test_a_hub_that_does_not_come_to_an_end_is_asked_so_often_and_no_more(
    hub: HubHand, probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    async with hub.registrar(), agent(config) as one:
        await store(one, 1, 2)
        await arrived(hub, probe)
        monkeypatch.setattr(registrar_verify, "_LOOK_SECONDS", -1.0)
        monkeypatch.setattr(resend_stream, "_PAGES", 3)
        report = await told.resend(config)
    assert report.exit is Exit.FAILED
    assert "is not done; retry later" in str(report.failure)
    assert len(told.said) == 3
    assert "the hub has looked up to sequence 1 of" in told.said[0]


async def test_the_command_reports_in_json_with_its_exit_code(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    async with agent(config) as one:
        await store(one, 1, 3)
        run = one.run
    path = tmp_path / "petiole.toml"
    path.write_text(
        f'domain = "edge-1"\nstate_dir = "{config.state_dir}"\n[nats]\nserver = "external"\n'
        f'listen = "{config.nats.listen}"\nseed_file = "{config.nats.seed_file}"\n'
    )

    async def petiole(*arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "petiole"), "resend", "-c", str(path), *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        return process.returncode or 0, out.decode(), error.decode()

    code, out, error = await petiole("--from", "2", "--json")
    assert (code, error) == (Exit.WELL, "")
    assert json.loads(out)["runs"] == [
        {"run": run, "sent": [[2, 3]], "more": False}
        | {
            name: []
            for name in ("under_way", "unknown", "refused", "gone", "unrecorded", "repeated", "not_sent")
        }
    ]
    code, out, error = await petiole("--to", "9", "--dry-run")
    assert (code, out.splitlines()[0]) == (Exit.WELL, f"run {run}:")
    assert "3 would be sent again: 1-3" in out
    await servers.leaf.stop()
    code, out, error = await petiole("--missing")
    assert (code, out) == (Exit.UNREACHABLE, "")
    assert "cannot be used" in error
