"""The errors that callers tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._emitter import Result


class SpendhookError(Exception):
    """The base of all errors of this library, except those of wrong arguments (ValueError)."""


class InvalidMessage(SpendhookError):
    """The message has no valid signature: answer 401."""


class KeysUnavailable(SpendhookError):
    """The published keys cannot be read now, so the message is neither valid nor invalid: answer 503."""


class ConnectionFailed(SpendhookError):
    """The daemon did not answer, or not to the end. It is not known whether the request was carried out."""


class ApiError(SpendhookError):
    """The daemon refused a request.

    `status` is that of the answer, `code` one of docs/errors.md (or of RFC 6749, for a token), "" if the answer has
    none. `retry_after` is the number of seconds that the daemon asks to wait, or None. `errors` has each invalid
    field.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        retry_after: float | None = None,
        errors: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(f"{status} {code}: {detail}" if code else f"{status}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after
        self.errors = errors


class EventRefused(SpendhookError):
    """The daemon refused an event: its status is CONFLICT or REJECTED. Sent again, it would be refused again."""

    def __init__(self, result: Result) -> None:
        reason = f": {result.error.code} {result.error.message}" if result.error else ""
        super().__init__(f"event {result.id} was refused, {result.status}{reason}")
        self.result = result


class EmitFailed(SpendhookError):
    """Sending ended before all events had a result.

    `results` has one for each event, in their order. None: it is not known whether the event was accepted; send the
    same events again. `__cause__` is the last error, if there was one.
    """

    def __init__(self, message: str, results: list[Result | None]) -> None:
        super().__init__(message)
        self.results = results
