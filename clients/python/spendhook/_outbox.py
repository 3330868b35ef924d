"""Inserts events into the outbox."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from . import _json

# Inserts a row, and wakes the relay when the transaction is committed. The libraries of all languages have this text.
_STATEMENT = (
    "WITH written AS (INSERT INTO spendhook_outbox"
    ' (id, company_uuid, event, key, "timestamp", metadata, error_code, error_message)'
    " VALUES (%s, CAST(%s AS uuid), %s, %s, COALESCE(CAST(%s AS timestamptz), now()), CAST(%s AS json), %s, %s) RETURNING 1)"
    " SELECT pg_notify('spendhook_outbox', '') FROM written"
)
_ID = re.compile(r"(?!spendhook-)[A-Za-z0-9_-]{1,128}")
_EVENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_COMPANY = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_METADATA = 256 << 10


@dataclass(frozen=True)
class OutboxEvent:
    """An event that `spendhook relay` is to send.

    `id` is unique in the company: 1 to 128 of A-Z a-z 0-9 _ -, not beginning with spendhook-. Make it of your work,
    such as the number of a payment, so that work that is repeated has the same one.
    """

    id: str
    event: str
    """The type, such as PAYMENT_PAID."""
    metadata: Mapping[str, Any] | str | None = None
    """A JSON object of at most 256 KiB. Its numbers may be Decimal, and keep their digits. A str is taken as the JSON
    itself."""
    key: str | None = None
    """Events of one key are sent in the order in which they were inserted. Insert after you have locked what the key
    stands for, such as the account, so that this is also the order of the commits. Without a key the order does not
    matter. At most 1,024 bytes."""
    timestamp: datetime | None = None
    """When the event happened, with a time zone; by default the begin of the transaction."""
    error_code: str | None = None
    """At most 128 bytes."""
    error_message: str | None = None
    """At most 4,096 bytes."""
    company_uuid: str | None = None
    """By default that of the relay."""


def insert_outbox(cursor: Any, event: OutboxEvent) -> None:
    """Inserts an event into the table spendhook_outbox of PostgreSQL.

    Call it within the transaction of your own work: the event is sent if and only if that is committed. `cursor` is
    one of DB-API 2.0 with the paramstyle format or pyformat, such as those of psycopg and psycopg2. Raises ValueError
    or TypeError if the event is not valid, and else the error of the driver.
    """
    cursor.execute(_STATEMENT, _values(event))


def _values(event: OutboxEvent) -> tuple[str | None, ...]:
    if not _ID.fullmatch(event.id):
        raise ValueError(
            "the id of an event has 1 to 128 of A-Z a-z 0-9 _ - and does not begin with spendhook-"
        )
    if not _EVENT.fullmatch(event.event):
        raise _refusal(event, "its type has 1 to 128 of A-Z a-z 0-9 _ . : - and begins with a letter or digit")
    if event.company_uuid and not _COMPANY.fullmatch(event.company_uuid):
        raise _refusal(event, "the company is not a UUID")
    for name, maximum in (("key", 1024), ("error_code", 128), ("error_message", 4096)):
        if len((getattr(event, name) or "").encode()) > maximum:
            raise _refusal(event, f"{name} has more than {maximum} bytes")
    return (
        event.id,
        event.company_uuid or None,
        event.event,
        event.key or None,
        _instant(event),
        _metadata(event),
        event.error_code or None,
        event.error_message or None,
    )


def _metadata(event: OutboxEvent) -> str:
    try:
        text = _object(event)
    except RecursionError:
        raise _refusal(event, "the metadata are nested too deeply") from None
    if len(text.encode()) > _MAX_METADATA:
        raise _refusal(event, "the metadata have more than 256 KiB")
    return text


def _object(event: OutboxEvent) -> str:
    metadata = event.metadata
    if metadata is None:
        return "{}"
    if isinstance(metadata, Mapping):
        return _json.encode(metadata)
    if isinstance(metadata, str) and isinstance(json.loads(metadata, parse_constant=_refuse_constant), dict):
        return metadata
    raise _refusal(event, "the metadata are not a JSON object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _instant(event: OutboxEvent) -> str | None:
    if event.timestamp is None:
        return None
    if event.timestamp.tzinfo is None:
        raise _refusal(event, "the timestamp needs a time zone")
    return event.timestamp.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _refusal(event: OutboxEvent, reason: str) -> ValueError:
    return ValueError(f"event {event.id}: {reason}")
