"""What the owner of a hub, whose server is under no rule, can do to the stream of an honest leaf."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import nats

from agent.base.files import private_directory, write_private
from agent.base.nats_server import find_binary
from agent.config.keys import ensure_key
from agent.contract import api_prefix, deliver_subject, new_epoch
from agent.demo.ports import free_port
from agent.demo.proxy import Proxy
from agent.server.child import Watched, reap, spawn
from tests.harness.servers import api, ask, is_answered, make_leaf
from tests.harness.streams import make_leaf_stream
from tests.harness.wait import until

OPEN = """
server_name: rogue
listen: "127.0.0.1:{port}"
jetstream {{ domain: hub, store_dir: "{directory}/store", max_file_store: 100MB }}
leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}
accounts {{ PETIOLE {{ jetstream: enabled, users: [ {{ user: o, password: o }}, {{ nkey: {key} }} ] }} }}
"""
STREAM = "TEL_edge-1_normal"
FORBIDDEN = (
    *(f"STREAM.{verb}.{STREAM}" for verb in ("DELETE", "PURGE", "UPDATE", "SNAPSHOT", "MSG.DELETE")),
    *(f"STREAM.{verb}.NEW" for verb in ("CREATE", "RESTORE")),
    *(f"STREAM.{verb}" for verb in ("NAMES", "LIST")),
    "INFO",
    f"DIRECT.GET.{STREAM}",
    f"CONSUMER.DURABLE.CREATE.{STREAM}.mine",
    *(f"CONSUMER.{verb}.{STREAM}" for verb in ("NAMES", "LIST")),
    *(f"CONSUMER.{verb}.{STREAM}.hub-{{epoch}}" for verb in ("DELETE", "PAUSE", "MSG.NEXT", "UNPIN")),
)


async def test_the_owner_of_the_hub_changes_nothing_of_a_leafs_stream_and_puts_nothing_into_it(
    tmp_path: Path,
) -> None:
    directory, port, leaf_port = private_directory(tmp_path / "rogue"), free_port(), free_port()
    proxy = Proxy(leaf_port)
    link = tmp_path / "edge-1" / "keys" / "link"
    text = OPEN.format(port=port, leaf_port=leaf_port, directory=directory, key=ensure_key(link))
    write_private(directory / "rogue.conf", text.encode())
    process = Watched(
        spawn([str(find_binary()), "-c", str(directory / "rogue.conf")], directory, directory / "out")
    )
    await proxy.start()
    leaf = make_leaf(tmp_path / "edge-1", "edge-1", ("normal",), proxy, link)
    try:
        await leaf.start()
        await leaf.wait_linked()
        agent, epoch = await leaf.connect("agent"), new_epoch()
        await make_leaf_stream(agent, "edge-1", epoch)
        await agent.jetstream().publish("tel.edge-1.normal.pump.bar", b"1")
        owner = await nats.connect(f"nats://o:o@127.0.0.1:{port}")
        prefix = api_prefix("edge-1")
        await until(lambda: is_answered(owner, f"{prefix}.STREAM.INFO.{STREAM}"), "the hub may look")
        subjects = [f"{prefix}.{one.format(epoch=epoch)}" for one in FORBIDDEN]
        answered = await asyncio.gather(*(is_answered(owner, one) for one in subjects))
        assert [one for one, yes in zip(subjects, answered, strict=True) if yes] == []
        for subject in ("tel.edge-1.normal.pump.bar", "tel.edge-1.normal._batch.http", "$MQTT.msgs.x"):
            await owner.publish(subject, b"forged")
        # What it may do is to read, as a source does; by then the forged ones would have been taken in.
        heard = await owner.subscribe(deliver_subject("edge-1", "normal", epoch))
        answer = await ask(owner, f"{prefix}.CONSUMER.RESET.{STREAM}.hub-{epoch}", {})
        assert "error" not in answer
        assert (await heard.next_msg(timeout=30)).data == b"1"
        assert (await api(agent, f"STREAM.INFO.{STREAM}"))["state"]["messages"] == 1
        await owner.close()
    finally:
        await leaf.close()
        await proxy.stop()
        process.signal(signal.SIGKILL)
        await process.ended.wait()
        reap(process.pid)
