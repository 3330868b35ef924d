"""What an inbox keeps: the ids of the events that were worked on, and its place in the feed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Transaction(Protocol[T_co]):
    """The part of a transaction that an inbox needs. It is used by one thread."""

    @property
    def work(self) -> T_co:
        """What the work on an event gets, to work in this transaction."""

    def add(self, id: str, sequence: int | None) -> bool:
        """Notes an event; False: a transaction that was committed, or this one, has noted it. While another
        transaction with this id is open, it waits for that one, or raises.
        """

    def cursor(self) -> str:
        """Returns the place in the feed, a text of at most 64 characters; "" at first."""

    def set_cursor(self, cursor: str) -> None:
        """Replaces the cursor."""


class Store(Protocol[T_co]):
    """Keeps the data of an inbox. Safe for concurrent use, by several processes if they share the data."""

    def transaction(self) -> AbstractContextManager[Transaction[T_co]]:
        """Keeps everything that is done in the `with` block if it ends, and nothing if it raises."""


class MemoryStore:
    """A Store for tests: everything is lost with the process. The work gets None, and runs one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._place = ""

    @contextmanager
    def transaction(self) -> Iterator[Transaction[None]]:
        """Implements Store."""
        with self._lock:
            transaction = _MemoryTransaction(self._ids, self._place)
            yield transaction
            self._ids |= transaction.added
            self._place = transaction.place


class _MemoryTransaction:
    work = None

    def __init__(self, known: set[str], place: str) -> None:
        self.known = known
        self.added: set[str] = set()
        self.place = place

    def add(self, id: str, sequence: int | None) -> bool:
        if id in self.known or id in self.added:
            return False
        self.added.add(id)
        return True

    def cursor(self) -> str:
        return self.place

    def set_cursor(self, cursor: str) -> None:
        self.place = cursor
