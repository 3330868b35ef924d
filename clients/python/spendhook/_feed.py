"""The feed of a subscriber, which has all of its events."""

from __future__ import annotations

import ssl
import urllib.parse
from dataclasses import dataclass
from typing import Any

from ._api import Api, Credentials
from ._errors import ApiError

_MAX_PAGE = 64 << 20  # bytes: 4 MiB of bodies, escaped
_PATIENCE = 15.0  # seconds beyond those that the daemon waits


@dataclass(frozen=True)
class FeedEvent:
    """An event of the feed. If it is gone, `body` is None, and `gone` says why: "COMPACTED", "CANCELLED" or
    "QUARANTINED".
    """

    id: str
    sequence: int
    body: bytes | None
    gone: str = ""


@dataclass(frozen=True)
class Page:
    """A page of the feed. `next` is the number up to which it goes, and `cursor` is where the next page begins; `more`
    says that it is there. `forgotten` is the number of events that the daemon no longer keeps.
    """

    events: list[FeedEvent]
    next: int
    cursor: str
    more: bool
    forgotten: int


class Feed:
    """The feed of a subscriber. Its token needs the scopes events:read and subscribers:read. Safe for concurrent use.

    `url` is the base address of the daemon, `subscriber` the id of the subscriber. Give a `token`, or `credentials`
    that get tokens. `company` is needed if the token belongs to no company. `insecure` allows to send the token
    over plain http to another host than this one. `limit` is the number of events of a page. `context` has the TLS
    settings, such as a CA of your own or a client certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        subscriber: str,
        token: str | None = None,
        credentials: Credentials | None = None,
        company: str | None = None,
        insecure: bool = False,
        limit: int = 100,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._api = Api(url, token=token, credentials=credentials, insecure=insecure, context=context)
        self._path = f"/api/v1/subscribers/{urllib.parse.quote(subscriber, safe='')}/feed"
        self._query = {"limit": str(limit)} | ({"companyUuid": company} if company else {})

    def read(self, cursor: str, wait: int = 0) -> Page:
        """Returns the events after the cursor of a page, or the oldest ones if it is "". If there are none, the daemon
        waits for one up to `wait` seconds, 30 at most. Raises ApiError or ConnectionFailed.
        """
        place = {"cursor": cursor} if cursor else {"after": "0"}
        query = {**self._query, **place, "wait": f"{wait}s"}
        document = self._api.call("GET", self._path, query=query, timeout=wait + _PATIENCE, max_size=_MAX_PAGE)
        try:
            events = [_event(item) for item in document["content"]]
            forgotten = int(document.get("forgotten", 0))
            page = Page(events, int(document["next"]), document["cursor"], bool(document["more"]), forgotten)
            if not isinstance(page.cursor, str):
                raise TypeError
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ApiError(200, "", "the answer is not from a feed") from None
        if page.more and page.cursor == cursor:
            raise ApiError(200, "", "the feed does not go on")
        return page


def _event(item: Any) -> FeedEvent:
    gone = str(item.get("gone") or "")
    body = None if gone else item.get("body")
    encoded = None if body is None else body.encode("utf-8", "surrogatepass")
    return FeedEvent(str(item["id"]), int(item["sequence"]), encoded, gone)
