"""What every store must do, and SQL."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import unittest
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from spendhook import Event, Inbox, MemoryStore, SqlStore, Verifier
from spendhook._sql import _Statements
from support import SECRET, Clock, delivery, needs

# A connection string of a database that the tests may change.
POSTGRES = os.environ.get("SPENDHOOK_POSTGRES", "")


class Stop(Exception):
    """Undoes a transaction."""


class StoreTests:
    """The tests of each kind of store."""

    store: Any
    assertTrue: Callable[..., None]
    assertFalse: Callable[..., None]
    assertEqual: Callable[..., None]
    assertRaises: Callable[..., Any]

    def test_an_id_is_new_once(self) -> None:
        with self.store.transaction() as transaction:
            self.assertTrue(transaction.add("a", 1))
            self.assertFalse(transaction.add("a", 2))
        with self.store.transaction() as transaction:
            self.assertFalse(transaction.add("a", 1))
            self.assertTrue(transaction.add("b", None))

    def test_nothing_is_kept_of_a_transaction_that_raises(self) -> None:
        with self.assertRaises(Stop), self.store.transaction() as transaction:
            transaction.add("a", 1)
            transaction.set_cursor("5-")
            raise Stop
        with self.store.transaction() as transaction:
            self.assertEqual(transaction.cursor(), "")
            self.assertTrue(transaction.add("a", 1))

    def test_the_cursor_is_replaced(self) -> None:
        for cursor in ("5-1795201200412", "3-", "x" * 64, ""):
            with self.store.transaction() as transaction:
                transaction.set_cursor(cursor)
                self.assertEqual(transaction.cursor(), cursor)
            with self.store.transaction() as transaction:
                self.assertEqual(transaction.cursor(), cursor)

    def test_of_many_threads_one_is_told_that_an_id_is_new(self) -> None:
        added: list[bool] = []

        def add() -> None:
            for n in range(10):
                with self.store.transaction() as transaction:
                    added.append(transaction.add(f"id-{n}", n))

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(added), sum(added)), (40, 10))


class MemoryStoreTest(StoreTests, unittest.TestCase):
    def setUp(self) -> None:
        self.store = MemoryStore()


class SqlTests(StoreTests):
    """The tests of each database."""

    clock: Clock
    other: Any  # a store of another process, so to speak
    make: Callable[[str], Any]  # returns a store of an inbox with this name
    assertRaisesRegex: Callable[..., Any]

    def test_ids_are_forgotten(self) -> None:
        for day, id in enumerate("abc"):
            with self.store.transaction() as transaction:
                transaction.add(id, None)
            self.clock.now += 86400
        self.assertEqual(self.store.forget(older_than=timedelta(days=2)), 1)
        with self.store.transaction() as transaction:
            self.assertTrue(transaction.add("a", None))
            self.assertFalse(transaction.add("b", None))

    def test_each_name_has_ids_and_a_cursor_of_its_own(self) -> None:
        a, b = self.make("a"), self.make("b")
        for store in (a, b):
            with store.transaction() as transaction:
                self.assertTrue(transaction.add("1", None))
                self.assertEqual(transaction.cursor(), "")
                transaction.set_cursor("5-")
        with self.make("a").transaction() as transaction:
            self.assertFalse(transaction.add("1", None))
            self.assertEqual(transaction.cursor(), "5-")
            transaction.set_cursor("6-")
        self.clock.now += 86400
        self.assertEqual(a.forget(older_than=timedelta(hours=1)), 1)
        with b.transaction() as transaction:
            self.assertFalse(transaction.add("1", None))
            self.assertEqual(transaction.cursor(), "5-")

    def test_the_tables_are_those_of_all_languages(self) -> None:
        with self.store.transaction() as transaction:
            transaction.add("a", 7)
            transaction.set_cursor("5-")
            transaction.work.execute("SELECT inbox, id, sequence, received_at FROM spendhook_inbox")
            self.assertEqual(tuple(transaction.work.fetchone()), ("inbox", "a", 7, int(self.clock.now)))
            transaction.work.execute("SELECT inbox, position FROM spendhook_cursor")
            self.assertEqual(tuple(transaction.work.fetchone()), ("inbox", "5-"))

    def test_migrating_again_keeps_everything(self) -> None:
        with self.store.transaction() as transaction:
            transaction.add("a", 1)
        self.store.migrate()
        with self.store.transaction() as transaction:
            self.assertFalse(transaction.add("a", 1))

    def test_a_second_transaction_waits_for_the_first(self) -> None:
        """A delivery and the feed, or two processes, may have the same event."""
        for id, undone in (("a", True), ("b", False)):
            results: list[bool] = []

            def add() -> None:
                with self.other.transaction() as transaction:
                    results.append(transaction.add(id, 1))  # noqa: B023

            thread = threading.Thread(target=add)
            try:
                with self.store.transaction() as transaction:
                    self.assertTrue(transaction.add(id, 1))
                    thread.start()
                    thread.join(0.05)
                    self.assertTrue(thread.is_alive())
                    if undone:
                        raise Stop
            except Stop:
                pass
            thread.join()
            self.assertEqual(results, [undone])


class SqliteTest(SqlTests, unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "inbox.db"
        self.clock = Clock()
        self.make = lambda name: SqlStore.sqlite(self.path, name=name, now=self.clock)
        self.store = SqlStore.sqlite(self.path, now=self.clock)
        self.store.migrate()
        self.other = SqlStore.sqlite(self.path)

    def test_the_wait_for_a_turn_ends(self) -> None:
        store = SqlStore.sqlite(self.path, busy_timeout=0.01)
        with store.transaction(), self.assertRaises(TimeoutError), store.transaction():
            pass
        with store.transaction() as transaction:
            self.assertTrue(transaction.add("a", 1))

    def test_a_connection_without_transactions_is_refused(self) -> None:
        store = SqlStore(lambda: sqlite3.connect(self.path, isolation_level=None), paramstyle="qmark")
        with self.assertRaisesRegex(ValueError, "autocommit"), store.transaction():
            self.fail("the work runs")

    def test_memory_is_refused(self) -> None:
        for path in ("", ":memory:"):
            with self.assertRaises(ValueError):
                SqlStore.sqlite(path)

    def test_work_that_commits_is_an_error(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "ended the transaction"), self.store.transaction() as transaction:
            transaction.add("a", 1)
            transaction.work.connection.commit()


class Connection:
    """A connection of a driver that has the attribute autocommit."""

    def __init__(self, autocommit: bool) -> None:
        self.autocommit = autocommit
        self.calls: list[str] = []

    def cursor(self) -> Any:
        return self

    def execute(self, statement: str) -> None:
        self.calls.append(statement)

    def commit(self) -> None:
        self.calls.append("commit")

    def rollback(self) -> None:
        self.calls.append("rollback")

    def close(self) -> None:
        self.calls.append("close")


class AutocommitTest(unittest.TestCase):
    def test_it_is_refused_before_the_work(self) -> None:
        connection = Connection(True)
        store = SqlStore(lambda: connection, paramstyle="pyformat")
        with self.assertRaisesRegex(ValueError, "autocommit"), store.transaction():
            self.fail("the work runs")
        self.assertEqual(connection.calls[-1], "close")

    def test_other_connections_commit(self) -> None:
        connection = Connection(False)
        with SqlStore(lambda: connection, paramstyle="pyformat").transaction():
            pass
        self.assertEqual(connection.calls, ["SAVEPOINT spendhook", "RELEASE SAVEPOINT spendhook", "commit", "close"])


@needs("psycopg2")
@unittest.skipUnless(POSTGRES, "SPENDHOOK_POSTGRES is not set, such as postgresql:///test")
class PostgresTest(SqlTests, unittest.TestCase):
    def setUp(self) -> None:
        import psycopg2  # type: ignore[import-untyped]

        def make(name: str) -> SqlStore:
            return SqlStore(lambda: psycopg2.connect(POSTGRES), paramstyle="pyformat", name=name, now=self.clock)

        self.clock, self.make = Clock(), make
        self.store = self.other = make("inbox")
        with self.store.transaction() as transaction:
            transaction.work.execute("DROP TABLE IF EXISTS spendhook_inbox, spendhook_cursor")
        threads = [threading.Thread(target=self.store.migrate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_autocommit_is_refused(self) -> None:
        import psycopg2

        def connect() -> Any:
            connection = psycopg2.connect(POSTGRES)
            connection.autocommit = True
            return connection

        store = SqlStore(connect, paramstyle="pyformat")
        with self.assertRaisesRegex(ValueError, "autocommit"), store.transaction():
            self.fail("the work runs")

    def test_a_transaction_that_a_caught_error_has_undone_is_an_error(self) -> None:
        import psycopg2

        verifier, broken = Verifier(secrets=[SECRET], now=Clock()), [True, False]

        def work(event: Event, cursor: Any) -> None:
            cursor.execute("SAVEPOINT before")
            with suppress(psycopg2.Error):
                cursor.execute("SELECT 1/0")
            if not broken.pop(0):
                cursor.execute("ROLLBACK TO before")

        inbox = Inbox(verifier=verifier, store=self.store, work=work)
        with self.assertLogs("spendhook") as logs:
            self.assertEqual(inbox.handle(delivery("a")).status, 500)
        self.assertIn("transaction is aborted", logs.output[0])
        self.assertEqual(inbox.handle(delivery("a")).status, 204)
        with self.store.transaction() as transaction:
            self.assertFalse(transaction.add("a", 1))

    def test_work_that_ends_the_transaction_is_an_error(self) -> None:
        verifier = Verifier(secrets=[SECRET], now=Clock())
        for id, statement in ("a", "ROLLBACK"), ("b", "COMMIT"):
            inbox = Inbox(verifier=verifier, store=self.store, work=lambda event, cursor, s=statement: cursor.execute(s))
            with self.assertLogs("spendhook"):
                self.assertEqual(inbox.handle(delivery(id)).status, 500)


class StatementsTest(unittest.TestCase):
    def test_each_paramstyle(self) -> None:
        for style, text, parameters in (
            ("qmark", "? ?", ("a", "b")),
            ("format", "%s %s", ("a", "b")),
            ("pyformat", "%s %s", ("a", "b")),
            ("numeric", ":1 :2", ("a", "b")),
            ("named", ":p1 :p2", {"p1": "a", "p2": "b"}),
        ):
            with self.subTest(style):
                self.assertEqual(_Statements(style).of("{} {}", ("a", "b")), (text, parameters))
        with self.assertRaises(ValueError):
            _Statements("other")


if __name__ == "__main__":
    unittest.main()
