"""Works on each event once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ._chain import Chain
from ._errors import ApiError, InvalidMessage, KeysUnavailable
from ._feed import Feed
from ._message import MAX_BODY, Event, Request, Response, challenge_of, number_of, read_event
from ._store import Store
from ._verifier import Verifier

T = TypeVar("T")

TOO_LARGE = Response(413, "the body is too large")
_NO_POST = Response(405, "only POST is allowed", (("Allow", "POST"),))

_FOLLOW_WAIT = 20  # seconds for which one request waits for an event
_MAX_PAUSE = 60.0
_LATENESS = 5.0  # seconds for which a delivery may come after the next one
_CHECK_EVERY = 600  # seconds; after the last event, no delivery says that it is missing
_REFUSALS_EVERY = 60.0  # seconds; anybody can send requests that are refused
_log = logging.getLogger("spendhook")


@dataclass(frozen=True)
class Progress:
    """What was read of the feed. `missing` is the number of events that the inbox lacked, and were worked on;
    `gone` that of events that were passed over because the daemon names them without a body, for a reason of `Passed`;
    `forgotten` that of events that the daemon no longer keeps, whether they are for this subscriber or not.
    """

    missing: int = 0
    gone: int = 0
    forgotten: int = 0


@dataclass(frozen=True)
class Passed:
    """An event that the feed names without a body, so that the inbox passes over it. `reason` is "COMPACTED": the daemon
    has removed the payload; "CANCELLED": somebody cancelled the delivery; or "QUARANTINED": an operator is to look at
    the event.
    """

    id: str
    sequence: int
    reason: str


class Inbox(Generic[T]):
    """Receives the deliveries to one subscriber, and works on each event once. Safe for concurrent use.

    `work(event, transaction)` works on an event. It runs in the transaction in which the store notes the id, so a
    repeat, a crash, or the feed, which has all events, changes the database once. `transaction` is what the store
    gives: a cursor of the database for `SqlStore`. If the work raises, nothing is kept, and the event is delivered
    again. Other effects, such as a mail, may then be repeated. It must be safe for concurrent use, and should end within
    some 15 seconds, after which Spendhook delivers again: nothing here bounds it. An event whose work always raises stops
    the reading of the feed there, since none is skipped; to give up on an event, `work` returns without raising.

    `passed` is called for each event that the feed names without a body, also if the inbox worked on the event before,
    and perhaps again when a page is read again. It must be safe for concurrent use. What it raises is an error of the
    reading.

    `origin` is the host name of the daemon, as WebHook-Request-Origin has it: that of its public_url. A receiver of the
    format "cloudevents" agrees to deliveries from there. Without it, it agrees to none, because the handshake is not
    signed.

    Failures are logged by the logger "spendhook", without the content of events. Without a handler, Python writes them to
    stderr. Refused deliveries are a warning, at most once a minute: with a wrong signing secret, all are refused.
    """

    def __init__(
        self,
        *,
        verifier: Verifier,
        store: Store[T],
        work: Callable[[Event, T], None],
        feed: Feed | None = None,
        passed: Callable[[Passed], None] | None = None,
        origin: str | None = None,
    ) -> None:
        self._verifier = verifier
        self._store = store
        self._work = work
        self._feed = feed
        self._passed = passed
        self._origin = origin
        self._chain = Chain()
        self._clock: Callable[[], float] = time.monotonic
        self._refusals = threading.Lock()
        self._quiet_until = 0.0

    def handle(self, request: Request) -> Response:
        """Answers a delivery; it raises nothing.

        204: the event was worked on, now or before. 200: the text of a challenge. 401: a signature is missing or not
        valid. 413: the body has more than 1 MiB. 503: the keys cannot be read. 500: the store or the work failed.
        After 500 and 503 Spendhook delivers again. The handshake of CloudEvents from the origin is answered 200, any
        other request that is no POST 405.
        """
        if request.method != "POST":
            return self._handshake(request)
        if len(request.body) > MAX_BODY:
            return TOO_LARGE
        try:
            self._verifier.verify(request)
        except InvalidMessage as error:
            self._report(error)
            return Response(401, "the signature is not valid")
        except KeysUnavailable as error:
            _log.warning("a delivery cannot be verified: %s", error)
            return Response(503, "the keys cannot be read now")
        id = request.header("webhook-id") or ""
        event = read_event(id, number_of(request.header("webhook-sequence")), request.body)
        challenge = challenge_of(event)
        if challenge is not None:
            return Response(200, challenge)
        try:
            added = self._once(event)
        except Exception:
            _log.exception("event %s", id)
            return Response(500, "try again later")
        if added:
            self._chain.delivered(event.sequence, number_of(request.header("webhook-previous")))
        return Response(204)

    def _report(self, refusal: InvalidMessage) -> None:
        """Warns of a refused delivery, unless there was a warning within the last minute."""
        with self._refusals:
            now = self._clock()
            if now < self._quiet_until:
                return
            self._quiet_until = now + _REFUSALS_EVERY
        _log.warning("a delivery was refused: %s; check the signing secret", refusal)

    def _handshake(self, request: Request) -> Response:
        """Agrees to deliveries if the daemon asks for that (CloudEvents, HTTP 1.1 Web Hooks for Event Delivery, 4)."""
        asked = request.header("webhook-request-origin") or ""
        if request.method != "OPTIONS" or not self._origin or asked.lower() != self._origin.lower():
            return _NO_POST
        return Response(
            200,
            headers=(("Allow", "POST"), ("WebHook-Allowed-Origin", self._origin), ("WebHook-Allowed-Rate", "*")),
        )

    def catch_up(self) -> Progress:
        """Reads the feed from where the last reading ended, and works on the events that the inbox lacks.

        It stops at the first error, such as one of the work, and raises it. The next call reads the page of that event
        again, so nothing is skipped. Deliveries may arrive meanwhile. If the daemon's Redis has lost events in a
        failover, so that others have their numbers, it reads from the start by itself. If the daemon no longer keeps
        events since the last reading, a warning is logged, and reading goes on.
        """
        reading = _Reading()
        while self._page(0, reading):
            pass
        return reading.progress

    def rewind(self) -> None:
        """Lets the next reading begin at the start of the feed. Events that are known are not worked on again.

        It is for a receiver that only reads the feed, after an operator retried an event that was QUARANTINED, or a
        delivery that was CANCELLED was replayed. Call it again if a reading from the start was under way: that may have
        moved the cursor since. Raises what the store does.
        """
        with self._store.transaction() as transaction:
            transaction.set_cursor("")

    def fill_gaps(self, stop: threading.Event) -> None:
        """Catches up, and then again when the event that a delivery names as the one before it has not come within 5
        seconds, when a delivery names none, and every 10 minutes.

        It ends within about a second after `stop` is set, or after the reading that is under way; run it in a thread. It
        survives errors as `follow` does. It costs less than `follow`, with which every event comes twice, but it knows
        only of deliveries to this process: if several processes share a store, each of them reads the feed while
        deliveries come. ValueError if the inbox has no feed.
        """
        self._need_feed()
        self._chain.watch(True)
        try:
            self._repeat("fill gaps", stop, lambda: self._fill(stop))
        finally:
            self._chain.watch(False)

    def _fill(self, stop: threading.Event) -> None:
        """Catches up, and waits until that is to be done again."""
        self.catch_up()
        end = time.monotonic() + _CHECK_EVERY
        while time.monotonic() < end and not stop.is_set():
            asked = self._chain.await_highest(1)
            if asked and not stop.wait(_LATENESS) and self._chain.missing(asked):
                return

    def follow(self, stop: threading.Event) -> None:
        """Catches up, and then works on each new event that the inbox lacks, until `stop` is set.

        It survives errors: it tries again after 1 second, then after twice the time, up to a minute. It is for a
        receiver that gets no deliveries; one that does runs `fill_gaps`. It notices `stop` within about 20 seconds; run
        it in a thread that is a daemon. ValueError if the inbox has no feed.
        """
        self._need_feed()
        reading = _Reading()
        self._repeat("follow the feed", stop, lambda: self._page(_FOLLOW_WAIT, reading))

    def _repeat(self, what: str, stop: threading.Event, step: Callable[[], object]) -> None:
        """Does something again and again, with a pause after an error."""
        failures = 0
        while not stop.is_set():
            try:
                step()
                failures = 0
            except Exception as error:
                pause = _pause(failures, error)
                _log.warning("%s, again in %.0f s: %s", what, pause, error, exc_info=True)
                stop.wait(pause)
                failures += 1

    def _need_feed(self) -> Feed:
        if self._feed is None:
            raise ValueError("the inbox has no feed")
        return self._feed

    def _page(self, wait: int, reading: _Reading) -> bool:
        """Reads a page, and works on it. Returns whether to read on at once."""
        feed = self._need_feed()
        with self._store.transaction() as transaction:
            cursor = transaction.cursor()
        before = self._chain.reading()
        try:
            page = feed.read(cursor, wait)
        except ApiError as error:
            if not cursor or error.code != "FEED_CHANGED":
                raise
            self.rewind()  # other events may have the numbers of those that were read
            cursor = ""
            page = feed.read(cursor, wait)
        missing = gone = 0
        for item in page.events:
            if item.body is None:
                gone += 1
                if self._passed:
                    self._passed(Passed(item.id, item.sequence, item.gone))
            elif self._once(read_event(item.id, item.sequence, item.body)):
                missing += 1
        reading.from_start = reading.from_start or not cursor
        if page.forgotten and not reading.from_start:
            _log.warning("%d events since the last reading are no longer kept by the service", page.forgotten)
        if page.cursor != cursor:
            self._move_cursor(cursor, page.cursor)
        if not page.more:
            self._chain.read(before, page.next)
            reading.from_start = False
        old = reading.progress
        reading.progress = Progress(old.missing + missing, old.gone + gone, old.forgotten + page.forgotten)
        return page.more

    def _move_cursor(self, begin: str, end: str) -> None:
        """Notes that a page was read, unless the cursor is no longer where the page begins. So `rewind` stays, except
        during a page from the start, which begins where `rewind` leads.
        """
        with self._store.transaction() as transaction:
            if transaction.cursor() == begin:
                transaction.set_cursor(end)

    def _once(self, event: Event) -> bool:
        """Works on an event, unless it is known."""
        with self._store.transaction() as transaction:
            if not transaction.add(event.id, event.sequence):
                return False
            self._work(event, transaction.work)
        return True


@dataclass
class _Reading:
    """A reading of the feed. From the start, events that are no longer kept are no news."""

    progress: Progress = Progress()
    from_start: bool = False


def _pause(failures: int, error: Exception) -> float:
    """How long `fill_gaps` and `follow` wait after an error."""
    pause = min(2.0 ** min(failures, 6), _MAX_PAUSE)
    asked = error.retry_after if isinstance(error, ApiError) else None
    return max(pause, min(asked or 0.0, _MAX_PAUSE))
