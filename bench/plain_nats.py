"""The alternative to the agent's publish path: nats-py as its documents show it, one reading a message.

`python -m bench.plain_nats URL SEED_FILE DOMAIN awaited|async SECONDS` prints readings stored and CPU seconds
used.
"""

from __future__ import annotations

import json
import sys
import time

import nats
import uvloop

from agent import contract
from agent.leaf.inputs.formats.ndjson import decode_ndjson
from bench.load import body

_CHECK_EVERY = 500


async def main(url: str, seed_file: str, domain: str, mode: str, seconds: float) -> None:
    """Validate and publish until the time is over, then wait for what is in flight."""
    nc = await nats.connect(
        url, nkeys_seed=seed_file, inbox_prefix=contract.inbox_prefix(domain).encode(), allow_reconnect=False
    )
    js = nc.jetstream()
    subject = contract.direct_subject(domain, contract.DEFAULT_CLASS, "bench", "pressure")
    lines = [line + b"\n" for line in body(_CHECK_EVERY, seed=1).splitlines()]
    stored, began, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        for line in lines:
            payload = decode_ndjson(line, domain, time.time_ns()).payload
            if mode == "awaited":
                await js.publish(subject, payload)
            else:
                await js.publish_async(subject, payload)
            stored += 1
    if mode == "async":
        await js.publish_async_completed()
    print(json.dumps({"readings": stored, "cpu_seconds": time.process_time() - cpu}))
    await nc.close()


if __name__ == "__main__":
    _, server, key_file, own_domain, how, long = sys.argv
    uvloop.run(main(server, key_file, own_domain, how, float(long)))
