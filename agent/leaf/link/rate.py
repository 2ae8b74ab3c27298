"""How fast the hub takes a class over a metered link: the rate of its link consumer."""

from __future__ import annotations

from agent import contract
from agent.config import StreamClass
from agent.jetstream import JetStream
from agent.leaf import stream_configs

_KEY = "rate_limit_bps"


async def ensure_rate(js: JetStream, domain: str, cls: StreamClass, epoch: str) -> None:
    """Give the link consumer the rate of its class, where it has another one. It goes on with its epoch:
    nothing is lost or sent twice (seen on nats-server 2.15.1, which lets through as much as one message may
    have, 8 MiB, before it holds back). Raises `ApiError` or `UnavailableError`."""
    stream = contract.leaf_stream(domain, cls.name)
    consumer = await js.find_consumer(stream, contract.link_consumer(epoch))
    if consumer is None:
        return  # the keeper makes it anew, at its rate
    bits = stream_configs.rate_limit(cls)
    if consumer.config.get(_KEY, 0) != bits:
        await js.create_consumer(stream, {**consumer.config, _KEY: bits})
