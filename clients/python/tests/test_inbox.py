"""Deliveries and the feed."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import unittest
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spendhook import (
    MAX_BODY,
    ApiError,
    Event,
    Feed,
    Inbox,
    InvalidMessage,
    KeysUnavailable,
    MemoryStore,
    Passed,
    Progress,
    Request,
    Response,
    SqlStore,
    Verifier,
)
from spendhook._inbox import _pause
from support import SECRET, Clock, Server, delivery, event_body, reply

UNAVAILABLE = (503, {"Content-Type": "application/problem+json"}, b'{"code":"UNAVAILABLE","detail":"later"}')
CHANGED = (409, {"Content-Type": "application/problem+json"}, b'{"code":"FEED_CHANGED","detail":"lost"}')


class Daemon:
    """A daemon that has a feed. A cursor names the event of its number, as that of the real one does."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.page_size = 2
        self.failures = 0
        self.failure = UNAVAILABLE
        self.queries: list[dict[str, str]] = []
        self.server = Server(self.answer)

    def add(self, *ids: str, **more: Any) -> None:
        for id in ids:
            sequence = len(self.events) + 1
            self.events.append({"sequence": sequence, "id": id, "body": event_body(id).decode(), **more})

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        self.queries.append(query)
        if self.failures:
            self.failures -= 1
            return self.failure
        after = int((query.get("cursor") or query["after"]).partition("-")[0])
        if query.get("cursor", self.cursor(after)) != self.cursor(after):
            return CHANGED
        content = self.events[after : after + self.page_size]
        following = after + len(content)
        more = following < len(self.events)
        page = {"content": content, "next": following, "cursor": self.cursor(following), "more": more, "forgotten": 1}
        return reply(page)

    def cursor(self, number: int) -> str:
        return f"{number}-{self.events[number - 1]['id'] if 0 < number <= len(self.events) else ''}"


class InboxTest(unittest.TestCase):
    def setUp(self) -> None:
        self.daemon = Daemon()
        self.addCleanup(self.daemon.server.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "inbox.db"
        self.store = SqlStore.sqlite(self.path)
        self.store.migrate()
        with self.store.transaction() as transaction:
            transaction.work.execute("CREATE TABLE worked (id TEXT)")
        self.seen: list[Event] = []
        self.failing: set[str] = set()
        self.feed = Feed(self.daemon.server.url + "/", subscriber="a/b", token="t", limit=2)
        self.inbox = self.make(self.store)

    def make(self, store: SqlStore, passed: Callable[[Passed], None] | None = None) -> Inbox[Any]:
        verifier = Verifier(secrets=[SECRET], now=Clock())
        return Inbox(verifier=verifier, store=store, work=self.work, feed=self.feed, passed=passed)

    def work(self, event: Event, cursor: Any) -> None:
        self.seen.append(event)
        cursor.execute("INSERT INTO worked VALUES (?)", (event.id,))
        if event.id in self.failing:
            raise RuntimeError("on purpose")

    def worked(self) -> list[str]:
        with self.store.transaction() as transaction:
            return [id for (id,) in transaction.work.execute("SELECT id FROM worked ORDER BY rowid")]

    def cursor(self) -> str:
        with self.store.transaction() as transaction:
            return transaction.cursor()

    def places(self) -> list[tuple[str | None, str | None]]:
        return [(query.get("after"), query.get("cursor")) for query in self.daemon.queries]

    def test_a_delivery_is_worked_on_once(self) -> None:
        for _ in range(3):
            self.assertEqual(self.inbox.handle(delivery("a", metadata={"amount": "12.50"}, sequence=7)), Response(204))
        self.assertEqual(self.worked(), ["a"])
        [event] = self.seen
        self.assertEqual((event.id, event.type, event.company_uuid, event.sequence), ("a", "PAYMENT_PAID", "c", 7))
        self.assertEqual(event.timestamp, datetime(2026, 11, 20, 9, 30, tzinfo=timezone.utc))
        self.assertEqual(event.metadata, {"amount": "12.50"})
        self.assertNotIn("12.50", repr(event))

    def test_inboxes_with_names_of_their_own_share_a_database(self) -> None:
        a, b, second = (self.make(SqlStore.sqlite(self.path, name=name)) for name in ("a", "b", "b"))
        for inbox in (a, b, second):
            self.assertEqual(inbox.handle(delivery("1")).status, 204)
        self.assertEqual(self.worked(), ["1", "1"])
        self.daemon.add("1", "2")
        self.assertEqual([inbox.catch_up().missing for inbox in (a, b, second)], [1, 1, 0])
        self.assertEqual(self.places(), [("0", None), ("0", None), (None, "2-2")])
        self.assertEqual(self.worked(), ["1", "1", "2", "2"])

    def test_failed_work_is_undone_and_repeated(self) -> None:
        self.failing = {"a"}
        self.assertEqual(self.inbox.handle(delivery("a")).status, 500)
        self.assertEqual(self.worked(), [])
        self.failing = set()
        self.assertEqual(self.inbox.handle(delivery("a")).status, 204)
        self.assertEqual(self.worked(), ["a"])

    def test_refusals(self) -> None:
        good = delivery("a")
        self.assertEqual(self.inbox.handle(Request("POST", "/", good.headers, good.body + b" ")).status, 401)
        self.assertEqual(self.inbox.handle(Request("POST", "/", {}, b"")).status, 401)
        large = delivery("a", b" " * (MAX_BODY + 1))
        self.assertEqual(self.inbox.handle(large).status, 413)
        self.assertEqual(self.inbox.handle(delivery("b", b" " * MAX_BODY)).status, 204)
        self.assertEqual(self.worked(), ["b"])

    def test_refusals_are_reported_once_a_minute(self) -> None:
        clock = Clock(0)
        self.inbox._clock = clock
        good = delivery("a")
        forged = Request("POST", "/", good.headers, good.body + b" ")
        with self.assertLogs("spendhook", logging.WARNING) as logs:
            for at, reported in ((0, 1), (59.9, 1), (60, 2), (119.9, 2), (3600, 3)):
                clock.now = at
                self.assertEqual(self.inbox.handle(forged).status, 401)
                self.assertEqual(len(logs.output), reported, at)
        warning = "WARNING:spendhook:a delivery was refused: no v1 signature is valid; check the signing secret"
        self.assertEqual(logs.output, [warning] * 3)

    def test_what_the_verifier_and_the_store_raise(self) -> None:
        class Failing:
            def __init__(self, error: Exception) -> None:
                self.error = error

            def verify(self, request: Request) -> None:
                raise self.error

            def transaction(self) -> Any:
                raise self.error

        for error, status in ((InvalidMessage("x"), 401), (KeysUnavailable("x"), 503)):
            inbox = Inbox(verifier=Failing(error), store=self.store, work=self.work)  # type: ignore[arg-type]
            self.assertEqual(inbox.handle(delivery("a")).status, status)
        inbox = Inbox(verifier=Verifier(secrets=[SECRET], now=Clock()), store=Failing(OSError("full")), work=self.work)
        self.assertEqual(inbox.handle(delivery("a")).status, 500)

    def test_a_challenge_is_answered_and_not_stored(self) -> None:
        body = event_body("ch", {"challenge": "YCNQ2-é"}, "SUBSCRIBER_CHALLENGE")
        self.assertEqual(self.inbox.handle(delivery("ch", body)), Response(200, "YCNQ2-é"))
        forged = Request("POST", "/", {**dict(delivery("ch").headers)}, body)
        self.assertEqual(self.inbox.handle(forged).status, 401)
        for metadata in ({"challenge": 5}, {"challenge": ""}, {}):
            body = event_body("odd", metadata, "SUBSCRIBER_CHALLENGE")
            self.assertEqual(self.inbox.handle(delivery("odd", body)).status, 204)
        self.assertEqual(self.worked(), ["odd"])

    def test_a_handshake_of_cloud_events(self) -> None:
        def asked(origin: str | None, asking: str, method: str = "OPTIONS") -> Response:
            verifier = Verifier(secrets=[SECRET], now=Clock())
            inbox = Inbox(verifier=verifier, store=self.store, work=self.work, origin=origin)
            return inbox.handle(Request(method, "/hooks", {"WebHook-Request-Origin": asking}, b""))

        name = "hooks.example.com"
        consent = (("Allow", "POST"), ("WebHook-Allowed-Origin", name), ("WebHook-Allowed-Rate", "*"))
        refusal = Response(405, "only POST is allowed", (("Allow", "POST"),))
        for asking in (name, "Hooks.Example.COM"):
            self.assertEqual(asked(name, asking), Response(200, "", consent))
        for asking in ("evil.example.com", "*", ""):
            self.assertEqual(asked(name, asking), refusal)
        self.assertEqual(asked(name, name, "GET"), refusal)
        for asking in (name, ""):
            self.assertEqual(asked(None, asking), refusal)
        self.assertEqual(asked("", ""), refusal)

    def test_other_bodies(self) -> None:
        for n, body in enumerate((
            b"", b"no JSON", b"[1]", b"null", b"NaN", b'{"event":NaN}', b"[" * 20000, b'{"a":' * 20000, b"\xff\xfe\x00", b"\xef\xbb\xbf{}",
            b'{"event":5,"metadata":[],"timestamp":{},"companyUuid":null}', b'{"timestamp":"yesterday"}',
            b'{"timestamp":"2026-11-20"}', b'{"event":"\\ud800"}',
        )):  # fmt: skip
            with self.subTest(body[:20]):
                self.assertEqual(self.inbox.handle(delivery(f"id-{n}", body, sequence=None)).status, 204)
                event = self.seen[-1]
                self.assertEqual((event.id, event.body, event.sequence), (f"id-{n}", body, None))
                self.assertEqual((event.metadata, event.timestamp, event.company_uuid), (None, None, None))
        self.assertEqual(len(self.worked()), 14)

    def test_large_numbers_do_not_make_a_body_unreadable(self) -> None:
        digits = "1" * 100_000
        body = b'{"event":"A","metadata":{"n":%s,"d":0.1000000000000000000001}}' % digits.encode()
        self.inbox.handle(delivery("a", body))
        self.assertEqual(self.seen[0].type, "A")
        exact = json.loads(body, parse_float=Decimal, parse_int=Decimal)["metadata"]
        self.assertEqual(exact["d"], Decimal("0.1000000000000000000001"))

    def test_thin_and_cloud_events(self) -> None:
        self.inbox.handle(
            delivery("a", b'{"id":"other","event":"A","companyUuid":"c","timestamp":"2026-11-20T09:30:00Z"}')
        )
        cloud = b'{"specversion":"1.0","id":"x","type":"B","subject":"d","time":"2026-11-20T09:30:00.5Z","data":{}}'
        self.inbox.handle(delivery("b", cloud))
        self.assertEqual(
            [(e.id, e.type, e.company_uuid, e.metadata, e.timestamp is None) for e in self.seen],
            [("a", "A", "c", None, False), ("b", "B", "d", None, False)],
        )

    def test_odd_sequences_are_unknown(self) -> None:
        for n, text in enumerate(("", "-1", "+1", "1.0", "x", "9" * 19, "²")):
            request = delivery(f"id-{n}", sequence=None)
            headers = {**dict(request.headers), "Webhook-Sequence": text}
            self.assertEqual(self.inbox.handle(Request("POST", "/", headers, request.body)).status, 204)
            self.assertIsNone(self.seen[-1].sequence)

    def test_catching_up(self) -> None:
        self.daemon.add("a", "b", "c", "d", "e")
        self.inbox.handle(delivery("b"))
        self.assertEqual(self.inbox.catch_up(), Progress(missing=4, forgotten=3))
        self.assertEqual(self.worked(), ["b", "a", "c", "d", "e"])
        self.assertEqual(self.seen[1].sequence, 1)
        self.assertEqual(self.inbox.handle(delivery("a")).status, 204)
        self.assertEqual(self.inbox.catch_up(), Progress(forgotten=1))
        self.assertEqual(self.places(), [("0", None), (None, "2-b"), (None, "4-d"), (None, "5-e")])
        self.assertEqual(self.worked(), ["b", "a", "c", "d", "e"])
        _, path, headers, _ = self.daemon.server.requests[0]
        self.assertTrue(path.startswith("/api/v1/subscribers/a%2Fb/feed?limit=2&"), path)
        self.assertEqual(headers["authorization"], "Bearer t")

    def test_failed_work_stops_catching_up_before_the_event(self) -> None:
        self.daemon.add("a", "b", "c", "d")
        self.failing = {"d"}
        with self.assertRaisesRegex(RuntimeError, "on purpose"):
            self.inbox.catch_up()
        self.assertEqual((self.worked(), self.cursor()), (["a", "b", "c"], "2-b"))
        self.failing = set()
        self.assertEqual(self.inbox.catch_up().missing, 1)
        self.assertEqual((self.worked(), self.cursor()), (["a", "b", "c", "d"], "4-d"))

    def test_a_feed_that_has_lost_events_is_read_from_the_start(self) -> None:
        self.daemon.add("a", "b", "c", "d", "e")
        self.inbox.catch_up()
        worked = ["a", "b", "c", "d", "e"]
        for kept, ids, last in ((4, "w", "5-w"), (3, "x", "4-x"), (3, "yz", "5-z")):  # as many, fewer, more
            with self.subTest(ids):
                del self.daemon.events[kept:], self.daemon.queries[:]
                self.daemon.add(*ids)
                self.assertEqual(self.inbox.catch_up().missing, len(ids))
                worked += ids
                self.assertEqual((self.worked(), self.cursor()), (worked, last))
                self.assertEqual(self.places()[1:3], [("0", None), (None, "2-b")])
                self.assertEqual(self.inbox._chain.reading(), len(self.daemon.events))
        self.assertEqual([event.id for event in self.seen], worked)

    def test_a_feed_that_changes_always_is_an_error(self) -> None:
        self.daemon.add("a", "b", "c")
        self.inbox.catch_up()
        self.daemon.failure, self.daemon.failures = CHANGED, 100
        for places in ([(None, "3-c"), ("0", None)], [("0", None)]):
            self.daemon.queries.clear()
            with self.assertRaisesRegex(ApiError, "409 FEED_CHANGED"):
                self.inbox.catch_up()
            self.assertEqual((self.places(), self.cursor()), (places, ""))
        self.daemon.failures = 0
        self.assertEqual(self.inbox.catch_up().missing, 0)
        self.assertEqual((self.worked(), self.cursor()), (["a", "b", "c"], "3-c"))

    def test_events_without_a_body_are_passed_over_and_counted(self) -> None:
        self.daemon.add("a")
        self.daemon.add("b", gone="COMPACTED", body="")
        self.daemon.add("c", gone="CANCELLED", body=None)
        self.daemon.add("d", gone="QUARANTINED", body=None)
        passed: list[Passed] = []
        for inbox in (self.inbox, self.make(SqlStore.sqlite(self.path, name="other"), passed.append)):
            self.assertEqual(inbox.catch_up(), Progress(missing=1, gone=3, forgotten=2))
        self.assertEqual((self.worked(), self.cursor()), (["a", "a"], "4-d"))
        self.assertEqual(passed, [Passed("b", 2, "COMPACTED"), Passed("c", 3, "CANCELLED"), Passed("d", 4, "QUARANTINED")])

    def test_what_passed_raises_stops_the_reading(self) -> None:
        self.daemon.add("a", "b", "c")
        self.daemon.events[2].update(gone="COMPACTED", body=None)
        tried: list[str] = []

        def passed(event: Passed) -> None:
            tried.append(event.id)
            if len(tried) == 1:
                raise RuntimeError("on purpose")

        inbox = self.make(self.store, passed)
        with self.assertRaisesRegex(RuntimeError, "on purpose"):
            inbox.catch_up()
        self.assertEqual((self.worked(), self.cursor()), (["a", "b"], "2-b"))
        self.assertEqual(inbox.catch_up().gone, 1)
        self.assertEqual((tried, self.cursor()), (["c", "c"], "3-c"))

    def test_events_that_are_no_longer_kept_are_reported(self) -> None:
        warning = "WARNING:spendhook:1 events since the last reading are no longer kept by the service"
        self.daemon.add("a", "b", "c")
        with self.assertNoLogs("spendhook", logging.WARNING):
            self.inbox.catch_up()  # a reading from the start
        self.daemon.add("d", "e", "f")
        with self.assertLogs("spendhook", logging.WARNING) as logs:
            self.assertEqual(self.inbox.catch_up(), Progress(missing=3, forgotten=2))
        self.assertEqual(logs.output, [warning, warning])  # once for each page
        with self.assertLogs("spendhook", logging.WARNING) as logs:
            self.inbox.rewind()
            self.inbox.catch_up()
            self.inbox.catch_up()
        self.assertEqual(logs.output, [warning])

    def test_rewinding_reads_from_the_start(self) -> None:
        self.daemon.add("a", "b", "c")
        self.daemon.events[0].update(gone="QUARANTINED", body=None)
        self.assertEqual(self.inbox.catch_up().missing, 2)
        self.daemon.events[0].update(gone="", body=event_body("a").decode())
        self.assertEqual(self.inbox.catch_up().missing, 0)
        self.inbox.rewind()
        self.assertEqual(self.cursor(), "")
        self.assertEqual(self.inbox.catch_up().missing, 1)
        self.assertEqual((self.worked(), self.cursor()), (["b", "c", "a"], "3-c"))

    def test_rewinding_is_not_undone_by_a_later_page_that_is_being_read(self) -> None:
        inbox = self.make(self.store, lambda _: self.inbox.rewind())
        self.daemon.add("a")
        inbox.catch_up()
        self.daemon.add("b", gone="COMPACTED", body=None)
        inbox.catch_up()
        self.assertEqual(self.cursor(), "")

    def test_answers_that_are_not_from_a_feed(self) -> None:
        page = {"content": [], "next": 0, "cursor": "0-", "more": False}
        for answer in (
            [],
            {},
            {**page, "more": True},
            {**page, "cursor": None},
            {**page, "cursor": 5},
            {"content": [], "next": 0, "more": False},
            {**page, "content": [5]},
            {**page, "next": None},
        ):
            with self.subTest(answer):
                server = Server(lambda *_: reply(answer))  # noqa: B023
                self.addCleanup(server.close)
                feed = Feed(server.url, subscriber="s", token="t")
                inbox = Inbox(verifier=Verifier(secrets=[SECRET]), store=MemoryStore(), work=lambda *_: None, feed=feed)
                with self.assertRaises(ApiError):
                    inbox.catch_up()

    def test_without_a_feed(self) -> None:
        inbox = Inbox(verifier=Verifier(secrets=[SECRET]), store=MemoryStore(), work=lambda *_: None)
        stop = threading.Event()
        for read in (inbox.catch_up, lambda: inbox.fill_gaps(stop), lambda: inbox.follow(stop)):
            with self.assertRaisesRegex(ValueError, "no feed"):
                read()

    def test_following_survives_errors_until_it_is_stopped(self) -> None:
        outer = self

        class Stop(threading.Event):
            """Does not wait, and ends when the event has been worked on."""

            waited: list[float] = []

            def wait(self, timeout: float | None = None) -> bool:
                self.waited.append(timeout or 0)
                return self.is_set()

            def is_set(self) -> bool:
                return outer.worked() == ["a", "b", "c"]

        self.daemon.add("a", "b", "c")
        self.daemon.failures = 3
        stop = Stop()
        self.inbox.follow(stop)
        self.assertEqual(stop.waited, [1, 2, 4])
        self.assertEqual(self.daemon.queries[0]["wait"], "20s")

    def test_gaps_are_filled(self) -> None:
        class Stop(threading.Event):
            """Does not wait for late deliveries."""

            def wait(self, timeout: float | None = None) -> bool:
                return self.is_set()

        def deliver(id: str, number: int, previous: str) -> None:
            good = delivery(id, sequence=number)
            headers = {**dict(good.headers), "webhook-previous": previous}
            self.assertEqual(self.inbox.handle(Request("POST", "/", headers, good.body)).status, 204)

        def become(ids: str) -> None:
            for _ in range(6000):
                if sorted(self.worked()) == list(ids):
                    return
                threading.Event().wait(0.01)
            self.fail(f"worked on {self.worked()}, not {ids}")

        stop = Stop()
        filling = threading.Thread(target=self.inbox.fill_gaps, args=[stop])
        filling.start()
        try:
            self.daemon.add("a", "b")
            deliver("b", 2, "")
            become("ab")
            self.daemon.add("c", "d")
            deliver("d", 4, "3")
            become("abcd")
        finally:
            stop.set()
            filling.join()
        deliver("f", 6, "5")  # nobody fills gaps
        self.assertEqual(self.inbox._chain.await_highest(0), 0)

    def test_the_pauses_of_following(self) -> None:
        self.assertEqual([_pause(n, OSError()) for n in (0, 1, 5, 6, 1000)], [1, 2, 32, 60, 60])
        self.assertEqual(_pause(0, ApiError(429, "", "", 7)), 7)
        self.assertEqual(_pause(0, ApiError(429, "", "", 7000)), 60)


if __name__ == "__main__":
    unittest.main()
