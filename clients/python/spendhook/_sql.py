"""A store in SQLite or PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

from ._store import Transaction

# The tables are the same in the libraries of all languages; received_at is in unix seconds.
_CREATE = (
    "CREATE TABLE IF NOT EXISTS spendhook_inbox (inbox VARCHAR(100) NOT NULL, id VARCHAR(255) NOT NULL,"
    " sequence BIGINT, received_at BIGINT NOT NULL, PRIMARY KEY (inbox, id))",
    "CREATE TABLE IF NOT EXISTS spendhook_cursor"
    " (inbox VARCHAR(100) NOT NULL PRIMARY KEY, position VARCHAR(64) NOT NULL)",
)
_FORGET = "DELETE FROM spendhook_inbox WHERE inbox = {} AND received_at < {}"
# The insertion comes first, and nobody looks whether the id is there: the unique key decides between two processes.
_ADD = (
    "INSERT INTO spendhook_inbox (inbox, id, sequence, received_at) VALUES ({}, {}, {}, {})"
    " ON CONFLICT (inbox, id) DO NOTHING"
)
_CURSOR = "SELECT position FROM spendhook_cursor WHERE inbox = {}"
_SET_CURSOR = (
    "INSERT INTO spendhook_cursor (inbox, position) VALUES ({}, {})"
    " ON CONFLICT (inbox) DO UPDATE SET position = excluded.position"
)


class SqlStore:
    """A Store in SQLite or PostgreSQL, by any driver of DB-API 2.0. Several processes may share the database.

    Each transaction has a connection of its own, which `connect` returns and which is closed afterwards. So `connect`
    may be `psycopg2.connect` with its arguments, or take a connection of a pool whose `close` returns it. A
    connection in the mode autocommit is refused by a ValueError. `paramstyle` is that of the driver's module. `begin`
    is a statement that begins a transaction, if the driver does not do that itself. For SQLite use `SqlStore.sqlite`.

    The work gets a cursor of the connection. It must not commit or roll back. In PostgreSQL a statement that fails undoes
    the transaction: if the work catches its error without going back to a savepoint, the transaction raises at its end.

    `name` is that of the inbox, of at most 100 characters. Inboxes of several subscribers in one database need names
    of their own; two processes of one inbox have the same name. `now` is the clock, in unix seconds.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        paramstyle: str,
        begin: str | None = None,
        name: str = "inbox",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._statement = _Statements(paramstyle)
        self._begin = begin
        self._name = name
        self._now = now
        self._turns: _Turns | None = None

    @classmethod
    def sqlite(
        cls,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float = 10,
        name: str = "inbox",
        now: Callable[[], float] = time.time,
    ) -> SqlStore:
        """Returns a store in a file of SQLite. Transactions take the lock for writing at once, and wait up to
        `busy_timeout` seconds for each other. The journal mode is that of the file; with WAL others can read
        meanwhile.
        """
        if os.fspath(path) in ("", ":memory:"):
            raise ValueError("each transaction has its own connection, so the database must be a file")

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)

        store = cls(connect, paramstyle=sqlite3.paramstyle, begin="BEGIN IMMEDIATE", name=name, now=now)
        store._turns = _Turns(busy_timeout)
        return store

    def migrate(self) -> None:
        """Creates the tables spendhook_inbox and spendhook_cursor unless they exist."""
        for statement in _CREATE:
            try:
                self._create(statement)
            except Exception:  # PostgreSQL refuses the second of two processes that create a table at the same time
                self._create(statement)

    def forget(self, older_than: timedelta) -> int:
        """Removes the ids of this inbox that were received before so long ago, and returns how many.

        An event that is delivered after its id was removed is worked on once more. So `older_than` must be more
        than the sender keeps events, which is 7 days by default and longer where the operator says so, and more
        than it takes until somebody replays one.
        """
        with self.transaction() as transaction:
            before = int(self._now() - older_than.total_seconds())
            return self._execute(transaction.work, _FORGET, self._name, before)

    @contextmanager
    def transaction(self) -> Iterator[Transaction[Any]]:
        """Implements Store."""
        with self._turns.take() if self._turns else nullcontext():
            with self._connected() as transaction:
                yield transaction

    @contextmanager
    def _connected(self) -> Iterator[Transaction[Any]]:
        connection = self._connect()
        try:
            cursor = connection.cursor()
            if self._begin:
                cursor.execute(self._begin)
            if _commits_by_itself(connection):  # the id would be kept although the work fails
                raise ValueError("the connection of the store is in the mode autocommit")
            knows = isinstance(getattr(connection, "in_transaction", None), bool)  # sqlite3 does
            if not knows:
                cursor.execute("SAVEPOINT spendhook")
            yield _SqlTransaction(self, cursor)
            if knows and not connection.in_transaction:
                raise RuntimeError("the work has ended the transaction of the inbox")
            if not knows:
                # It fails if the work has ended the transaction, or caught the error of a statement: PostgreSQL would then
                # roll back instead of committing, and its driver does not say so.
                connection.cursor().execute("RELEASE SAVEPOINT spendhook")
            connection.commit()
        except BaseException:
            with suppress(Exception):  # the error that was first counts
                connection.rollback()
            raise
        finally:
            connection.close()

    def _create(self, statement: str) -> None:
        with self.transaction() as transaction:
            transaction.work.execute(statement)

    def _execute(self, cursor: Any, statement: str, *values: Any) -> int:
        cursor.execute(*self._statement.of(statement, values))
        return int(cursor.rowcount)


class _SqlTransaction:
    def __init__(self, store: SqlStore, cursor: Any) -> None:
        self._store = store
        self.work = cursor

    def add(self, id: str, sequence: int | None) -> bool:
        store = self._store
        return store._execute(self.work, _ADD, store._name, id, sequence, int(store._now())) == 1

    def cursor(self) -> str:
        self._store._execute(self.work, _CURSOR, self._store._name)
        row = self.work.fetchone()
        return str(row[0]) if row else ""

    def set_cursor(self, cursor: str) -> None:
        self._store._execute(self.work, _SET_CURSOR, self._store._name, cursor)


def _commits_by_itself(connection: Any) -> bool:
    """Whether each statement is committed at once. sqlite3 says so by isolation_level, too, unless `begin` was executed."""
    if getattr(connection, "autocommit", False) is True:
        return True
    legacy = isinstance(connection, sqlite3.Connection) and connection.isolation_level is None
    return legacy and not connection.in_transaction


class _Turns:
    """Lets one thread of this process into a file of SQLite. Its own way to wait is to try again after a while, and
    of many threads some would never come to their turn.
    """

    def __init__(self, patience: float) -> None:
        self._lock = threading.Lock()
        self._patience = patience

    @contextmanager
    def take(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._patience):
            raise TimeoutError("the database is busy")
        try:
            yield
        finally:
            self._lock.release()


class _Statements:
    """Writes statements in a paramstyle of DB-API 2.0."""

    def __init__(self, paramstyle: str) -> None:
        placeholders = {
            "qmark": lambda n: "?",
            "format": lambda n: "%s",
            "pyformat": lambda n: "%s",  # of drivers that name this style, all take sequences, too
            "numeric": lambda n: f":{n}",
            "named": lambda n: f":p{n}",
        }
        if paramstyle not in placeholders:
            raise ValueError(f"unknown paramstyle {paramstyle!r}")
        self._placeholder = placeholders[paramstyle]
        self._named = paramstyle == "named"

    def of(self, statement: str, values: tuple[Any, ...]) -> tuple[str, Any]:
        """Returns the statement with placeholders instead of `{}`, and its parameters."""
        numbers = range(1, len(values) + 1)
        text = statement.format(*map(self._placeholder, numbers))
        return text, {f"p{n}": value for n, value in zip(numbers, values)} if self._named else values
