"""Which deliveries are missing."""

from __future__ import annotations

import itertools
import threading
import unittest

from spendhook._chain import Chain


def watched(up_to: int) -> Chain:
    """A chain that is watched and was read up to a number."""
    chain = Chain()
    chain.watch(True)
    chain.read(0, up_to)
    return chain


class ChainTest(unittest.TestCase):
    def test_in_any_order_it_is_open_while_the_one_before_a_delivery_is_missing(self) -> None:
        numbers = [1, 2, 4, 5, 9, 10]
        for order in itertools.permutations(range(1, 6)):
            chain, came = watched(1), {0}
            for at in order:
                chain.delivered(numbers[at], numbers[at - 1])
                came.add(at)
                missing = any(n > 0 and n - 1 not in came for n in came)
                self.assertEqual(chain.await_highest(0) > 0, missing, (order, came))
                self.assertEqual(chain.missing(10), missing, (order, came))
            chain.delivered(11, 10)
            self.assertEqual(chain.await_highest(0), 0)

    def test_what_the_feed_has_answers_the_questions_about_the_events_before(self) -> None:
        for number, previous, read, is_open in (
            (7, None, 7, False),
            (7, None, 6, True),
            (7, 0, 6, True),
            (7, 5, 4, True),
            (7, 5, 5, False),
            (7, 5, 9, False),
            (None, None, 0, False),
        ):
            with self.subTest(number=number, previous=previous, read=read):
                chain = watched(0)
                chain.delivered(number, previous)
                chain.read(0, read)
                self.assertEqual(chain.await_highest(0) > 0, is_open)

    def test_only_a_watched_chain_keeps_deliveries_and_not_too_many(self) -> None:
        chain = Chain()
        chain.delivered(7, 5)
        self.assertEqual(chain.await_highest(0), 0)
        chain.watch(True)
        for n in range(10_001):
            chain.delivered(2 * n + 100, 2 * n + 99)
        chain.read(0, 20_099)
        self.assertEqual(chain.await_highest(0), 20_100)  # the one that was not kept
        chain.read(0, 20_100)
        self.assertEqual(chain.await_highest(0), 0)

    def test_a_late_delivery_answers_the_question_also_when_others_are_asked_meanwhile(self) -> None:
        chain = watched(1)
        chain.delivered(3, 2)
        asked = chain.await_highest(0)
        chain.delivered(2, 1)
        chain.delivered(5, 4)
        self.assertEqual((asked, chain.missing(asked), chain.missing(5)), (3, False, True))

    def test_a_wrong_number_is_corrected_by_the_next_reading(self) -> None:
        wrong = 10**17
        for previous in (None, 1, wrong - 1):
            with self.subTest(previous=previous):
                chain = watched(1)
                chain.delivered(wrong, previous)
                chain.read(chain.reading(), 5)
                self.assertEqual(chain.await_highest(0), 0)
                chain.delivered(8, 7)
                self.assertEqual(chain.await_highest(0), 8)

    def test_waiting_ends_with_a_delivery(self) -> None:
        chain = watched(1)
        self.assertEqual(chain.await_highest(0), 0)
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(chain.await_highest(60)))
        waiting.start()
        chain.delivered(3, 2)
        waiting.join()
        self.assertEqual(found, [3])


if __name__ == "__main__":
    unittest.main()
