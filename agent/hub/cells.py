"""The cells of the hub: accounts of its server, each with leaves, aggregates and commands of its own. What a
server does for a link that comes up grows with the number of links in its account (docs/hub-cluster.md), so a
large fleet is split. The registrar has a connection in each; the records of the fleet are in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nats.aio.client import Client

from agent.contract import HOME, cell_of
from agent.jetstream import JetStream


class CellStreams:
    """The JetStream of each cell, over the connection in it; `make` makes it."""

    def __init__(self, clients: Mapping[str, Client], make: Callable[[Client], JetStream]) -> None:
        self.by_cell = {cell: make(nc) for cell, nc in clients.items()}
        """The first cell is in front."""

    @property
    def home(self) -> JetStream:
        """That of the first cell."""
        return self.by_cell[HOME]

    def of(self, stream: str) -> JetStream:
        """That which has an aggregate."""
        return self.by_cell[cell_of(stream)]
