"""Sends events."""

from __future__ import annotations

import enum
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from . import _json
from ._api import Api, Credentials, TokenRefused
from ._errors import ApiError, ConnectionFailed, EmitFailed, EventRefused

_MAX_ARRAY = 1000
_MAX_ARRAY_BYTES = 4 << 20
_MAX_ANSWER = 16 << 20
_FIRST_PAUSE = 0.5  # seconds
_MAX_PAUSE = 30.0
_PASSING = (429, 502, 503, 504)


@dataclass(frozen=True)
class OutgoingEvent:
    """An event that is to be sent.

    `id` and `timestamp` are required, and must be the same when the event is sent again: with other ones it would
    be another event. `timestamp` is when the event happened: a datetime with a time zone, RFC 3339, or epoch
    milliseconds. Numbers in `metadata` may be Decimal, and keep their digits.
    """

    id: str
    event: str
    """The type, such as PAYMENT_PAID."""
    timestamp: datetime | str | int
    metadata: Mapping[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    company_uuid: str | None = None
    """Required unless the token or the Emitter names the company."""


class Status(enum.StrEnum):
    """What became of an event that was sent."""

    ACCEPTED = "ACCEPTED"
    """It is stored, and will be delivered."""
    DUPLICATE = "DUPLICATE"
    """It was accepted before."""
    CONFLICT = "CONFLICT"
    """An event with this id and other content is known."""
    REJECTED = "REJECTED"


@dataclass(frozen=True)
class Failure:
    """Why an event was refused. `code` is one of docs/errors.md, or PAYLOAD_TOO_LARGE if a proxy refused the event for
    its size, and `errors` has each invalid field. `retry_after` is the number of seconds after which the same event
    may be accepted; None: never.
    """

    code: str
    message: str
    retry_after: int | None = None
    errors: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Result:
    """What became of the event with this id. `error` is there for CONFLICT and REJECTED."""

    id: str
    status: Status
    error: Failure | None = None


class Emitter:
    """Sends events, each at least once and so that it is accepted once: a repeat has the same bytes, and the daemon
    knows an event by its id. Safe for concurrent use.

    `url` is the base address of the daemon. Give a `token`, or `credentials` that get tokens; the scope is
    events:write. `company` is that of events without one, for a token that belongs to no company. An attempt takes
    at most `timeout` seconds without progress, and for one array new attempts begin for at most `retry_for`
    seconds. `insecure` allows to send the token over plain http to another host than this one. `context` has the
    TLS settings, such as a client certificate. `now`, `sleep` and `jitter` (from 0 to 1) are replaced by tests.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        credentials: Credentials | None = None,
        company: str | None = None,
        retry_for: float = 60,
        timeout: float = 10,
        insecure: bool = False,
        context: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._api = Api(url, token=token, credentials=credentials, insecure=insecure, context=context, now=now)
        self._company = company
        self._retry_for = retry_for
        self._timeout = timeout
        self._now = now
        self._sleep = sleep
        self._jitter = jitter

    def send(self, event: OutgoingEvent) -> Result:
        """Sends an event, and returns a result that is ACCEPTED or DUPLICATE.

        Raises EventRefused if the event is refused, EmitFailed if the request is, or if there was no answer in time:
        then send the same event again. ValueError or TypeError if the event cannot be sent.
        """
        [result] = self.send_all([event])
        if result.status in (Status.CONFLICT, Status.REJECTED):
            raise EventRefused(result)
        return result

    def send_all(self, events: Iterable[OutgoingEvent]) -> list[Result]:
        """Sends events in arrays, and returns the result of each, in their order.

        Events that are refused for a reason that passes are sent again, alone. Another refusal is a result, not an
        error: look at each status. An array that is too large for a proxy is divided. An event that is too large even
        alone, or that cannot be read (MALFORMED_BODY), is REJECTED, and the others go on. Raises EmitFailed, with the
        results so far, and before anything is sent ValueError or TypeError if an event cannot be sent.
        """
        sendings = [_Sending(event.id, _encode(event, self._company)) for event in events]
        try:
            for array in _arrays(sendings):
                self._send_array(array, self._now() + self._retry_for)
        except _GaveUp as error:
            raise EmitFailed(str(error), [sending.result for sending in sendings]) from error.__cause__
        return [sending.result for sending in sendings if sending.result]

    def _send_array(self, pending: list[_Sending], deadline: float) -> None:
        """Sends an array, divided if it is refused, until no event is refused for a reason that passes."""
        while pending:
            answers = self._post(b"[" + b",".join(sending.text for sending in pending) + b"]", len(pending), deadline)
            if answers is None:
                half = len(pending) // 2
                self._send_array(pending[:half], deadline)
                self._send_array(pending[half:], deadline)
                return
            for sending, answer in zip(pending, answers):
                sending.result = replace(answer, id=sending.id)
            pending = [sending for sending in pending if sending.retry_after() is not None]
            if not pending:
                return
            pause = max(1.0, *(float(sending.retry_after() or 0) for sending in pending))
            error = pending[0].result and pending[0].result.error
            reason = f"{len(pending)} events are still refused: {error.code if error else ''}"
            self._pause(pause, deadline, reason, None)
            for sending in pending:
                sending.result = None  # until the next answer it is not known

    def _post(self, body: bytes, count: int, deadline: float) -> list[Result] | None:
        """Sends the same bytes until they are answered, and returns a result for each event; None if the array must
        be divided.
        """
        attempt = 0
        while True:
            try:
                document = self._api.call(
                    "POST", "/api/v1/events", body=body, timeout=self._timeout, max_size=_MAX_ANSWER
                )
                return _results(document, count)
            except ssl.SSLCertVerificationError as error:
                raise _GaveUp(f"the certificate is not trusted: {error}") from error
            except ApiError as error:
                if _blames_events(error):
                    return [_refusal(error)] if count == 1 else None
                if error.status not in _PASSING:
                    raise _GaveUp(str(error)) from error
                failure: Exception = error
            except ConnectionFailed as error:
                failure = error
            asked = failure.retry_after if isinstance(failure, ApiError) else None
            self._pause(asked or self._backoff(attempt), deadline, str(failure), failure)
            attempt += 1

    def _backoff(self, attempt: int) -> float:
        """Doubles up to the maximum. Half of it is random, so that several emitters do not come back together."""
        pause: float = min(_FIRST_PAUSE * 2 ** min(attempt, 10), _MAX_PAUSE)
        return pause * (0.5 + 0.5 * self._jitter())

    def _pause(self, seconds: float, deadline: float, reason: str, cause: Exception | None) -> None:
        if self._now() + seconds > deadline:
            raise _GaveUp(f"gave up after {self._retry_for:g} s: {reason}") from cause
        self._sleep(seconds)


class _GaveUp(Exception):
    """No further attempt is made. The cause is the error of the last one."""


@dataclass
class _Sending:
    """An event on its way: its bytes, and its result, None while that is not known."""

    id: str
    text: bytes
    result: Result | None = None

    def retry_after(self) -> int | None:
        return self.result.error.retry_after if self.result and self.result.error else None


def _arrays(sendings: list[_Sending]) -> Iterable[list[_Sending]]:
    """Splits events into arrays that the API takes."""
    array: list[_Sending] = []
    size = 0
    for sending in sendings:
        more = len(sending.text) + len(",")
        if array and (len(array) == _MAX_ARRAY or len("[]") + size + more > _MAX_ARRAY_BYTES):
            yield array
            array, size = [], 0
        array.append(sending)
        size += more
    if array:
        yield array


def _encode(event: OutgoingEvent, company: str | None) -> bytes:
    if not event.id or not event.event:
        raise ValueError("an event needs an id and a type")
    members: dict[str, Any] = {"id": event.id, "event": event.event, "timestamp": _timestamp(event.timestamp)}
    optional = {
        "metadata": event.metadata,
        "errorCode": event.error_code,
        "errorMessage": event.error_message,
        "companyUuid": event.company_uuid or company,
    }
    members |= {name: value for name, value in optional.items() if value is not None}
    try:
        return _json.encode(members).encode()
    except RecursionError:
        raise ValueError(f"event {event.id} is nested too deeply") from None


def _timestamp(value: datetime | str | int) -> str | int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("the timestamp of an event needs a time zone")
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if not value or isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("an event needs a timestamp: a datetime, RFC 3339, or epoch milliseconds")
    return value


def _results(document: Any, count: int) -> list[Result]:
    try:
        results = [_result(item) for item in document["results"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ApiError(200, "", "the answer has no results") from None
    if len(results) != count:
        raise ApiError(200, "", f"sent {count} events, got {len(results)} results")
    return results


def _blames_events(error: ApiError) -> bool:
    """Whether the events are the cause. Other refusals, such as one of a token, would meet any events."""
    return not isinstance(error, TokenRefused) and (error.status == 413 or error.code == "MALFORMED_BODY")


def _refusal(error: ApiError) -> Result:
    return Result("", Status.REJECTED, Failure(error.code or "PAYLOAD_TOO_LARGE", error.detail, errors=error.errors))


def _result(item: Any) -> Result:
    error = item.get("error")
    failure = error and Failure(
        str(error.get("code", "")), str(error.get("message", "")), error.get("retryAfter"), error.get("errors") or ()
    )
    return Result(str(item.get("id", "")), Status(item["status"]), failure)
