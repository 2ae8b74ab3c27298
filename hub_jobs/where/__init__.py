"""Counts one domain's readings for `petiole where`, from the tables and the hub's waiting messages.
Read-only.
"""

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
