"""Checks the options of `format("nats")`. Pure.

Spark shows options in plans, event logs and web pages, so secrets are refused and never repeated in errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NoReturn, TypeVar

from hub_jobs.source.plan import DEFAULT_RECORDS, Offsets, parse_moment, parse_offsets
from hub_jobs.source.server import INBOX_PREFIX, Server

OPTIONS: Final = (
    "servers",
    "domain",
    "apiPrefix",
    "seedFile",
    "creds",
    "secretEnv",
    "caFile",
    "tlsFirst",
    "inboxPrefix",
    "stream",
    "streamPattern",
    "filterSubjects",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "pushdown",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "pushdown")
_STREAMING_ONLY: Final = ("maxOffsetsPerTrigger",)

_SECRET_NAMES: Final = frozenset(
    {"password", "pass", "token", "seed", "nkey", "jwt", "secret", "user", "username"}
)
_SECRET_VALUE: Final = re.compile(r"\bS[UAONCPXV][A-Z2-7]{56}\b|-----BEGIN|\beyJ[\w-]{8,}\.[\w-]{8,}\.")
_INSTEAD: Final = (
    "Spark writes options into plans and logs. Put the secret into a file and name it in seedFile or creds, "
    "or into an environment variable of driver and executors and name that in secretEnv"
)
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,32}\Z")
_STREAM: Final = re.compile(r"[^\s.*>/\\]{1,255}\Z")
_SUBJECT: Final = re.compile(r"[^\s.]+(\.[^\s.]+)*\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_T = TypeVar("_T")


class OptionError(ValueError):
    """An option is unknown, missing, wrong or a secret; the text names it and the remedy."""


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read: `streams`, or a `pattern` of whole names."""

    server: Server
    streams: tuple[str, ...]
    pattern: re.Pattern[str] | None
    filter_subjects: tuple[str, ...]
    starting: Offsets
    ending: Offsets
    min_partitions: int | None
    """None for one per parallel task, if worthwhile."""
    max_records: int
    fail_on_loss: bool
    include_headers: bool
    max_per_trigger: int | None
    pushdown: bool


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Check the options of a read; names are case-insensitive. Raises OptionError for the first wrong one."""
    known = {name.lower(): name for name in OPTIONS}
    for name, value in given.items():
        _refuse_secret(name, value)
        if name.lower() not in known:
            nearest = get_close_matches(name.lower(), known, 1, 0.5)
            hint = (
                f"did you mean {known[nearest[0]]}?" if nearest else f"the options are {', '.join(OPTIONS)}"
            )
            raise OptionError(f"unknown option {name}: {hint}")
    values = {known[name.lower()]: value for name, value in given.items()}
    for name in _BATCH_ONLY if streaming else _STREAMING_ONLY:
        if name in values:
            kind = "streaming reads: a query ends when it is stopped" if streaming else "batch reads"
            raise OptionError(f"option {name} is not for {kind}; leave it out")
    return ReadOptions(
        server=_server(values),
        streams=() if "streamPattern" in values else _names(values, "stream", _STREAM, "a stream's name"),
        pattern=_pattern(values),
        filter_subjects=_names(values, "filterSubjects", _SUBJECT, "a subject")
        if "filterSubjects" in values
        else (),
        starting=_bound(values, "starting", "earliest"),
        ending=_bound(values, "ending", "latest"),
        min_partitions=_count(values, "minPartitions", 1) if "minPartitions" in values else None,
        max_records=_count(values, "maxRecordsPerPartition", DEFAULT_RECORDS),
        fail_on_loss=_flag(values, "failOnDataLoss", True),
        include_headers=_flag(values, "includeHeaders", False),
        max_per_trigger=_count(values, "maxOffsetsPerTrigger", 1)
        if "maxOffsetsPerTrigger" in values
        else None,
        pushdown=_flag(values, "pushdown", False),
    )


def _pattern(values: Mapping[str, str]) -> re.Pattern[str] | None:
    if "streamPattern" not in values:
        return None
    if "stream" in values:
        raise OptionError("give stream or streamPattern, not both")
    try:
        return re.compile(_required(values, "streamPattern", "TELEMETRY_[0-9]+"))
    except re.error as error:
        raise OptionError(f"option streamPattern is not a regular expression: {error}") from error


def _bound(values: Mapping[str, str], side: str, default: str) -> Offsets:
    offsets, moment = f"{side}Offsets", f"{side}Timestamp"
    if offsets in values and moment in values:
        raise OptionError(f"give {offsets} or {moment}, not both")
    if moment in values:
        return _take(moment, lambda name: parse_moment(values[name], name))
    return _take(offsets, lambda name: parse_offsets(values.get(name, default), name))


def _refuse_secret(name: str, value: str) -> None:
    if name.lower() in _SECRET_NAMES or _SECRET_VALUE.search(str(value)):
        raise OptionError(f"the option {name} holds a secret or part of one. {_INSTEAD}")


def _server(values: Mapping[str, str]) -> Server:
    if "domain" in values and "apiPrefix" in values:
        raise OptionError("give domain or apiPrefix, not both: a domain's prefix is $JS.<domain>.API")
    if sum(name in values for name in ("seedFile", "creds", "secretEnv")) > 1:
        raise OptionError("give one of seedFile, creds and secretEnv")
    prefix = values.get("apiPrefix", "$JS.API").removesuffix(".")
    if "domain" in values:
        _check(values["domain"], _DOMAIN, "domain", "letters, digits, _ and -, at most 32")
        prefix = f"$JS.{values['domain']}.API"
    _check(prefix, _SUBJECT, "apiPrefix", "a subject such as $JS.hub.API")
    inbox = values.get("inboxPrefix", INBOX_PREFIX)
    _check(inbox, _SUBJECT, "inboxPrefix", "a subject such as _INBOX_jobs")
    if "secretEnv" in values:
        _check(
            values["secretEnv"], _VARIABLE, "secretEnv", "the name of an environment variable", shown=False
        )
    return _take(
        "servers",
        lambda name: Server(
            url=_required(values, name, "nats://hub:4222"),
            seed_file=values.get("seedFile"),
            creds_file=values.get("creds"),
            secret_env=values.get("secretEnv"),
            ca_file=values.get("caFile"),
            tls_first=_flag(values, "tlsFirst", False),
            inbox_prefix=inbox,
            api_prefix=prefix,
        ),
    )


def _take(name: str, make: Callable[[str], _T]) -> _T:
    try:
        return make(name)
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from error


def _required(values: Mapping[str, str], name: str, example: str) -> str:
    if not values.get(name, "").strip():
        raise OptionError(f'the option {name} is missing: option("{name}", "{example}")')
    return values[name]


def _names(values: Mapping[str, str], name: str, form: re.Pattern[str], what: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in _required(values, name, "TELEMETRY_0").split(","))
    for position in found:
        _check(position, form, name, what)
    if len(set(found)) != len(found):
        raise OptionError(f"option {name} names one twice: {values[name]}")
    return found


def _check(value: str, form: re.Pattern[str], name: str, what: str, shown: bool = True) -> None:
    if not form.match(value):
        raise OptionError(f"option {name}{f': {value!r}' if shown else ''} is not {what}")


def _count(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default)).strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        _wrong(name, text, "a whole number from 1 on")
    return int(text)


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        _wrong(name, text, "true or false")
    return text == "true"


def _wrong(name: str, text: str, wanted: str) -> NoReturn:
    raise OptionError(f"option {name} is {text[:80]!r}; give {wanted}")
