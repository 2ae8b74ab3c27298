"""Where the readings of one domain are, as the tables tell: `petiole where` looks with it. It counts with the
audit's own parts, restricted to a domain, and takes in what waits at the hub and is not in bronze yet. It
reads and never writes."""

from hub_jobs.audit.rows.pieces import ScanPart
from hub_jobs.where.device import DeviceCounts
from hub_jobs.where.lake import Lake, Waiting, open_lake
from hub_jobs.where.query import DomainFindings, Sums, look

__all__ = [
    "DeviceCounts",
    "DomainFindings",
    "Lake",
    "ScanPart",
    "Sums",
    "Waiting",
    "look",
    "open_lake",
]
