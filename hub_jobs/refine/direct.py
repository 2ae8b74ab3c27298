"""Converts direct messages of one bare number to rows of `readings` by column. Pure.

All other messages are left to `Refiner`, which applies the contract.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import H_MQTT, ContractError, mqtt_text, parse_reading, parse_subject
from hub_jobs.refine.columns import coded
from hub_jobs.tables.grouping import coded_column, different_rows, plain_texts
from hub_jobs.tables.ranges import Mask, Numbers
from hub_jobs.tables.schemas import READINGS, TIME

_EXPONENT: Final = "[eE][-+]?[0-9]{1,2}"
_NUMBER: Final = (
    rf"^(0|-?[1-9][0-9]{{0,14}}|-?(0|[1-9][0-9]{{0,20}})(\.[0-9]{{1,20}}({_EXPONENT})?|{_EXPONENT}))$"
)
"""A JSON number that a double holds exactly: an integer of at most 15 digits, or a fraction."""
_MQTT: Final = f"\r\n{H_MQTT}:".encode()
_MQTT_FIRST: Final = b"NATS/1.0" + _MQTT
"""Headers' start when the server writes the MQTT header first."""
_TAGS: Final = READINGS.names.index("tags")
_NO_TAGS: Final = pa.array([[]], READINGS.field("tags").type)
Names = tuple[str, str] | None
"""Device and metric, None when undecided here."""


class DirectReadings:
    """Gathers readings from plain rows of bronze."""

    def __init__(self) -> None:
        self.size = 0
        self._gathered: list[pa.Table] = []
        self._names: dict[tuple[str, str, bool], Names] = {}

    def add(self, rows: pa.Table) -> pa.Table:
        """Take bare numbers from rows (`arrived` in microseconds) and return the rest."""
        may_be = pc.and_(pc.is_null(rows["n"]), pc.is_valid(rows["domain"]))
        may_be = pc.and_(may_be, pc.match_substring_regex(rows["payload"], _NUMBER))
        candidates = np.flatnonzero(pc.fill_null(may_be, False).to_numpy())
        if not candidates.size:
            return rows
        names, codes = self._named(_taken(rows, candidates))
        known = np.array([name is not None for name in names])[codes]
        if not known.any():
            return rows
        taken = candidates[known]
        self._gathered.append(_readings(_taken(rows, taken), names, codes[known]))
        self.size += taken.size
        if taken.size == rows.num_rows:
            return rows.slice(0, 0)
        others: Mask = np.ones(rows.num_rows, dtype=np.bool_)
        others[taken] = False
        return rows.filter(pa.array(others))

    def drain(self) -> pa.Table:
        """Return the gathered readings, coded like the `Refiner`'s."""
        gathered, self._gathered, self.size = self._gathered, [], 0
        if not gathered:
            return READINGS.empty_table()
        rows = pa.concat_tables(gathered).unify_dictionaries().combine_chunks()
        tags = coded(_NO_TAGS).take(pa.array(np.zeros(rows.num_rows, dtype=np.int32)))
        return rows.add_column(_TAGS, "tags", tags)

    def _named(self, rows: pa.Table) -> tuple[list[Names], Numbers]:
        columns = [rows["subject"], rows["domain"], _are_mqtt(rows["headers"])]
        first, which = different_rows(columns)
        picked = pa.table(columns, names=["subject", "domain", "is_mqtt"]).take(pa.array(first))
        keys = zip(*(column.to_pylist() for column in plain_texts(picked).columns), strict=True)
        return [self._name(key) for key in keys], which

    def _name(self, key: tuple[str, str, bool]) -> Names:
        if key not in self._names:
            self._names[key] = _name(*key)
        return self._names[key]


def _taken(rows: pa.Table, places: Numbers) -> pa.Table:
    return rows if places.size == rows.num_rows else rows.take(pa.array(places))


def _are_mqtt(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Tell which messages came over MQTT. Searches only headers without the usual start, since Arrow scans
    bytewise.
    """
    return pa.chunked_array([_are_mqtt_in(piece) for piece in headers.chunks], pa.bool_())


def _are_mqtt_in(headers: pa.Array) -> pa.Array:
    found: Mask = pc.fill_null(pc.starts_with(headers, _MQTT_FIRST), False).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(~found)
    rest = headers if others.size == len(headers) else headers.take(pa.array(others))
    content = rest.buffers()[2]
    if content is not None and _MQTT in content.to_pybytes():
        found = found.copy()
        found[others] = pc.fill_null(pc.match_substring(rest, _MQTT), False)
    return pa.array(found)


def _name(subject: str, domain: str, is_mqtt: bool) -> Names:
    try:
        parsed = parse_subject(subject)
        if parsed.kind != "direct" or parsed.domain != domain:
            return None
        device, metric = (
            (mqtt_text(parsed.name), mqtt_text(parsed.metric)) if is_mqtt else (parsed.name, parsed.metric)
        )
        parse_reading(msgspec.json.encode({"device": device, "metric": metric, "value": 0}))
    except ContractError:
        return None
    return device, metric


def _readings(rows: pa.Table, names: list[Names], codes: Numbers) -> pa.Table:
    count = rows.num_rows
    arrived = rows["arrived"].combine_chunks().cast(TIME)
    same = np.zeros(count, dtype=np.int32)
    devices, metrics = zip(*(name or ("", "") for name in names), strict=True)
    number = rows["payload"].combine_chunks().cast(pa.string()).cast(pa.float64())
    arrays = {
        "ts": arrived,
        "ts_source": coded_column(same, ["hub"]),
        "domain": _coded_column(rows, "domain"),
        "device": coded_column(codes.astype(np.int32), devices),
        "metric": coded_column(codes.astype(np.int32), metrics),
        "value": number,
        "text": pa.nulls(count, pa.string()),
        "class": _coded_column(rows, "class"),
        "run": coded_column(same, [None]),
        "n": pa.nulls(count, pa.int64()),
        "index": pa.array(same),
        "arrived": arrived,
        "event_date": arrived.cast(pa.date32()),
        "source_stream": _coded_column(rows, "source_stream"),
        "source_identity": _coded_column(rows, "source_identity"),
        "source_seq": rows["source_seq"].combine_chunks(),
        "ts_original": pa.nulls(count, TIME),
        "value_array": pa.nulls(count, READINGS.field("value_array").type),
        "value_bytes": pa.nulls(count, pa.binary()),
    }
    return pa.table(arrays)


def _coded_column(rows: pa.Table, name: str) -> pa.DictionaryArray:
    return rows[name].combine_chunks().dictionary_encode()
