"""Notices when a delivery is missing."""

from __future__ import annotations

import threading

_MAX_WAITING = 10_000


class Chain:
    """Knows which deliveries have come, by the event that each of them names as the one before it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched = False
        self._up_to = 0  # no event up to this number is missing
        self._unknown = 0  # up to this number the feed must be read: a delivery named none
        self._waiting: dict[int, int] = {}  # those that came before the one that they name, by its number

    def watch(self, on: bool) -> None:
        """Only a chain that is watched keeps deliveries."""
        with self._changed:
            self._watched = on
            self._waiting.clear()
            self._unknown = 0

    def delivered(self, number: int | None, previous: int | None) -> None:
        """Notes the number of an event and of the one before it; None: unknown."""
        with self._changed:
            if not self._watched or number is None or number <= self._up_to:
                return
            if previous is not None and previous <= self._up_to:
                self._reach(number)
                return
            if previous is None or len(self._waiting) == _MAX_WAITING:
                self._unknown = max(self._unknown, number)
            else:
                self._waiting[previous] = number
            self._changed.notify_all()

    def read(self, up_to: int) -> None:
        """Notes that the feed was read up to a number."""
        with self._changed:
            self._reach(up_to)

    def is_open(self) -> bool:
        """Whether an event may be missing."""
        with self._changed:
            return self._open()

    def await_open(self, timeout: float) -> bool:
        """Waits until an event may be missing, for at most a time in seconds, and returns whether one may be."""
        with self._changed:
            return self._changed.wait_for(self._open, timeout)

    def _open(self) -> bool:
        return self._unknown > self._up_to or len(self._waiting) > 0

    def _reach(self, up_to: int) -> None:
        self._up_to = max(self._up_to, up_to)
        for previous in sorted(self._waiting):
            if previous > self._up_to:
                return
            self._up_to = max(self._up_to, self._waiting.pop(previous))
