"""Where the readings of one domain are, as the tables tell: `petiole where` looks with it. It counts with the
audit's own parts, restricted to a domain, and takes in what waits at the hub and is not in bronze yet. It
reads and never writes."""

from hub_jobs.audit.scan import Part
from hub_jobs.where.device import DeviceCounts
from hub_jobs.where.query import Found, Lake, Sums, look, open_lake
from hub_jobs.where.wanted import Message, Record, Waiting

__all__ = [
    "DeviceCounts",
    "Found",
    "Lake",
    "Message",
    "Part",
    "Record",
    "Sums",
    "Waiting",
    "look",
    "open_lake",
]
