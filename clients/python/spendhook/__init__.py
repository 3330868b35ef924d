"""Receives webhooks of Spendhook, works on each event once, and emits events.

Receiving: `Verifier` checks signatures, and `Inbox` works on each event once, with a `Store` and, to find what was
missed, a `Feed`. `wsgi_app`, `flask_view` and `asgi_app` serve an inbox. Emitting: `Emitter`; or
`insert_outbox` in a transaction, for `spendhook relay`.

Only the standard library is needed, except that `Verifier(keys_url=...)` needs `spendhook[keys]`.
"""

from ._adapters import RequestHandler, asgi_app, flask_view, wsgi_app
from ._api import Credentials
from ._emitter import Emitter, Failure, OutgoingEvent, Result, Status
from ._errors import (
    ApiError,
    ConnectionFailed,
    EmitFailed,
    EventRefused,
    InvalidMessage,
    KeysUnavailable,
    SpendhookError,
)
from ._feed import Feed
from ._inbox import Inbox, Passed, Progress
from ._message import MAX_BODY, Event, Request, Response
from ._outbox import OutboxEvent, insert_outbox
from ._sql import SqlStore
from ._store import MemoryStore, Store, Transaction
from ._verifier import Verifier
from ._version import __version__

__all__ = [
    "MAX_BODY",
    "ApiError",
    "ConnectionFailed",
    "Credentials",
    "EmitFailed",
    "Emitter",
    "Event",
    "EventRefused",
    "Failure",
    "Feed",
    "Inbox",
    "InvalidMessage",
    "KeysUnavailable",
    "MemoryStore",
    "OutboxEvent",
    "OutgoingEvent",
    "Passed",
    "Progress",
    "Request",
    "RequestHandler",
    "Response",
    "Result",
    "SpendhookError",
    "SqlStore",
    "Status",
    "Store",
    "Transaction",
    "Verifier",
    "__version__",
    "asgi_app",
    "flask_view",
    "insert_outbox",
    "wsgi_app",
]
