"""Requests, answers and events, independent of any server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

MAX_BODY = 1 << 20
"""The largest body of a delivery that is accepted, in bytes. Spendhook sends smaller ones."""

_CHALLENGE = "SUBSCRIBER_CHALLENGE"
_NUMBER = re.compile(r"[0-9]{1,18}")
_MAX_INT_DIGITS = 4000  # int() refuses more than 4,300


@dataclass(frozen=True)
class Request:
    """A received request.

    `url` is path and query as the request line has them, not decoded. `headers` is a mapping, or pairs of which
    several may have the same name; upper and lower case do not differ. `body` is the raw body.
    """

    method: str
    url: str
    headers: Mapping[str, str] | Iterable[tuple[str, str]]
    body: bytes
    _by_name: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, str] = {}
        pairs = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        for name, value in pairs:
            key = name.lower()
            by_name[key] = f"{by_name[key]}, {value}" if key in by_name else value
        object.__setattr__(self, "_by_name", by_name)

    def header(self, name: str) -> str | None:
        """Returns the value of a header, of several lines with ", " between them; None if it is missing."""
        return self._by_name.get(name.lower())


@dataclass(frozen=True)
class Response:
    """The answer to a request. `body` is plain text, or empty; `headers` are pairs of a name and a value."""

    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Event:
    """An event as a delivery or the feed has it.

    What the body does not have is None: the formats "thin" and "cloudevents" have no `metadata`, and a body that is
    not JSON has neither `type` nor the fields after it. Numbers in `metadata` are int and float. For exact decimals
    parse the body: `json.loads(event.body, parse_float=decimal.Decimal)["metadata"]`.
    """

    id: str
    """Unique in the company; the header webhook-id."""
    body: bytes = field(repr=False)
    """The raw body."""
    type: str | None = None
    """Such as PAYMENT_PAID."""
    company_uuid: str | None = None
    timestamp: datetime | None = None
    """When the event happened, with a time zone."""
    metadata: dict[str, Any] | None = field(default=None, repr=False)
    sequence: int | None = None
    """The number of the event in its company. In a delivery it is covered by HTTP message signatures only."""


def number_of(text: str | None) -> int | None:
    """Reads webhook-sequence or webhook-previous; None if it is missing or not a number."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def read_event(id: str, sequence: int | None, body: bytes) -> Event:
    """Reads what it can of a body."""
    members = _members(body)
    cloud_event = "specversion" in members
    metadata = members.get("metadata")
    return Event(
        id=id,
        body=body,
        type=_text(members.get("type" if cloud_event else "event")),
        company_uuid=_text(members.get("subject" if cloud_event else "companyUuid")),
        timestamp=_time(members.get("time" if cloud_event else "timestamp")),
        metadata=metadata if isinstance(metadata, dict) else None,
        sequence=sequence,
    )


def challenge_of(event: Event) -> str | None:
    """Returns the text that the answer to a challenge repeats; None for any other event."""
    if event.type != _CHALLENGE or event.metadata is None:
        return None
    return _text(event.metadata.get("challenge")) or None


def _members(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode(), parse_int=_integer, parse_constant=_refuse)
    except (ValueError, ArithmeticError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _MAX_INT_DIGITS else Decimal(text)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo else None
