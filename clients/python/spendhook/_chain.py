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
        self._unknown = 0  # the highest number of a delivery that named none
        self._waiting: dict[int, int] = {}  # those that came before the one that they name, by its number

    def watch(self, on: bool) -> None:
        """Only a chain that is watched keeps deliveries."""
        with self._changed:
            self._watched = on
            self._waiting.clear()
            self._unknown = 0

    def delivered(self, number: int | None, previous: int | None) -> None:
        """Notes the number of an event and of the one before it; None and 0: unknown."""
        with self._changed:
            if not self._watched or number is None or number <= self._up_to:
                return
            if previous and previous <= self._up_to:
                self._link(number)
                return
            if not previous or len(self._waiting) == _MAX_WAITING:
                self._unknown = max(self._unknown, number)
            else:
                self._waiting[previous] = number
            self._changed.notify_all()

    def reading(self) -> int:
        """Notes that the feed is about to be read, which answers all questions so far. Its result is for `read`."""
        with self._changed:
            self._waiting.clear()
            self._unknown = 0
            return self._up_to

    def read(self, before: int, up_to: int) -> None:
        """Notes that the feed was read up to a number. `before` is higher only after a wrong number in a delivery, or
        when the feed has lost events.
        """
        with self._changed:
            if before > up_to:
                self._up_to = up_to
            self._link(up_to)

    def await_highest(self, timeout: float) -> int:
        """Waits for a delivery whose predecessor may be missing, for at most a time in seconds.

        Returns the highest number of one; 0: there is none.
        """
        with self._changed:
            return self._changed.wait_for(self._highest, timeout)

    def missing(self, up_to: int) -> bool:
        """Whether the predecessor of a delivery up to a number may be missing still."""
        with self._changed:
            return self._unknown > self._up_to or any(number <= up_to for number in self._waiting.values())

    def _highest(self) -> int:
        return max(self._unknown if self._unknown > self._up_to else 0, *self._waiting.values(), 0)

    def _link(self, up_to: int) -> None:
        """Notes that nothing up to a number is missing, and goes on with the deliveries that follow."""
        self._up_to = max(self._up_to, up_to)
        for previous in sorted(self._waiting):
            if previous > self._up_to:
                return
            self._up_to = max(self._up_to, self._waiting.pop(previous))
