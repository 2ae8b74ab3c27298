"""Deleting what audits said long ago. Each adds a row to `audit` for every run that ever was, so that the
table would grow with the square of its age, and the newest one says all of it again, its findings too."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.job_loop import back, say
from hub_jobs.tables.compaction import without
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import bounds, files, latest

_NAME: Final = "maintain"
_KEPT: Final = timedelta(days=90)
"""By the newest audit, so that one stays however long ago it was, and a wrong clock deletes nothing more."""
_SLACK: Final = timedelta(days=30)
"""For so long rows stay beyond their age, so that a file is written again once a month, not each night."""


def drop_old_audits(lake: Place, *, dry_run: bool) -> None:
    """Delete the rows of audits that are long past. Raises `ConflictError`."""
    table = open_table(lake, "audit")
    newest = None if table is None else latest(table, "at")
    if table is None or newest is None:
        return
    before = back(newest, _KEPT)
    oldest = min((least for least in bounds(files(table), "min.at") if least is not None), default=newest)
    if oldest >= back(before, _SLACK):
        return
    if dry_run:
        say(_NAME, f"audit: the rows of audits before {before:%Y-%m-%d} would be deleted")
        return

    def is_old(rows: pa.Table) -> pa.Array:
        return pc.less(rows["at"], pa.scalar(before, rows["at"].type))

    dropped = without(lake, table, is_old, ["at"], [("at", "<", before)])
    table.rewrite(dropped.kept, dropped.replaced, changed=True)
    say(_NAME, f"audit: {dropped.rows} rows of audits before {before:%Y-%m-%d} are deleted")
