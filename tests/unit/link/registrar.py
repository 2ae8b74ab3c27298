"""What the registrar makes of an announcement over a modelled hub, with the functions that it decides by."""

from __future__ import annotations

import msgspec

from agent.contract import H_MESSAGE_ID, H_SOURCE, Announce, Checkpoint, ClassAnswer, leaf_stream
from agent.jetstream import RawMessage, StreamInfo
from agent.registrar.answer import Stored, agreed, class_answer
from agent.registrar.fleet import Held, Place, admitted
from tests.unit.link.stores import HubStore

CLS = "normal"


def take_in(hub: HubStore, announce: Announce) -> None:
    """Bring the record up to date, and have the source follow the announced epoch."""
    place = Place(hub.name, hub.created, hub.last)
    hub.leaf = admitted(announce, hub.leaf, {CLS: place}, "")
    hub.follow(announce.classes[CLS].epoch)


def answer(hub: HubStore, announce: Announce) -> ClassAnswer:
    """The answer to an announcement that was taken in."""
    assert hub.leaf is not None
    held, batch, checkpoint = None, None, announce.checkpoint.get(CLS)
    if hub.cursor:
        held = Held(hub.cursor, hub.cursor_id, hub.last, hub.last)
    if not hub.cursor_id:
        # As its server finds the newest batch where the message at the cursor has no id.
        rows = enumerate(hub.held, 1)
        batch = next((Stored(one[0], one[1], seq) for seq, one in reversed([*rows]) if one[1]), None)
    record = msgspec.structs.replace(hub.leaf.classes[CLS], held=held)
    agrees = None if checkpoint is None else _agreed(hub, announce.domain, checkpoint)
    if agrees:
        record = msgspec.structs.replace(record, checkpoint=checkpoint)
    hub.leaf = msgspec.structs.replace(hub.leaf, classes={CLS: record})
    return class_answer(record, "flowing", agrees, batch)


def _agreed(hub: HubStore, domain: str, checkpoint: Checkpoint) -> bool | None:
    assert hub.leaf is not None
    stream, message = leaf_stream(domain, CLS), None
    if checkpoint.hub_seq <= hub.last:
        seq, ident, _ = hub.held[checkpoint.hub_seq - 1]
        headers = {H_SOURCE: f"{stream}:x:C=y {seq} > > tel", H_MESSAGE_ID: ident}
        message = RawMessage(checkpoint.hub_seq, "tel", headers, b"", "")
    info = StreamInfo(hub.name, hub.created, 1, hub.last, hub.last, 0, {}, [])
    return agreed(checkpoint, stream, hub.leaf.classes[CLS], info, message)
