"""The outbox."""

from __future__ import annotations

import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from spendhook import OutboxEvent, insert_outbox

FULL = OutboxEvent(
    "pay-1",
    "PAYMENT_PAID",
    '{"amount": 12.50}',
    key="account-1",
    timestamp=datetime(2026, 11, 20, 9, 30, 0, 123999, timezone(timedelta(hours=2))),
    error_code="C",
    error_message="m",
    company_uuid="ABCDEF00-0000-4000-8000-000000000001",
)


class Cursor:
    """Records what it is to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def execute(self, statement: str, values: tuple[Any, ...]) -> None:
        self.calls.append((statement, values))


class OutboxTest(unittest.TestCase):
    def test_an_event_is_inserted_by_one_statement(self) -> None:
        cursor = Cursor()
        insert_outbox(cursor, FULL)
        insert_outbox(cursor, OutboxEvent("pay-2", "PAYMENT_PAID"))
        insert_outbox(cursor, OutboxEvent("pay-3", "PAYMENT_PAID", {"amount": Decimal("12.50")}))
        statements = {statement for statement, _ in cursor.calls}
        self.assertEqual(len(statements), 1)
        self.assertEqual(statements.pop().count("%s"), 8)
        self.assertEqual(
            [values for _, values in cursor.calls],
            [
                (
                    "pay-1", "ABCDEF00-0000-4000-8000-000000000001", "PAYMENT_PAID", "account-1",
                    "2026-11-20T07:30:00.123999+00:00", '{"amount": 12.50}', "C", "m",
                ),
                ("pay-2", None, "PAYMENT_PAID", None, None, "{}", None, None),
                ("pay-3", None, "PAYMENT_PAID", None, None, '{"amount":12.50}', None, None),
            ],
        )  # fmt: skip

    def test_an_event_that_is_not_valid_is_not_inserted(self) -> None:
        wrong: dict[str, dict[str, Any]] = {
            "the id": {"id": ""},
            "begin with spendhook-": {"id": "spendhook-1"},
            "1 to 128": {"id": "a\n"},
            "its type": {"event": "A B"},
            "not a UUID": {"company_uuid": "acme"},
            "key has more": {"key": "é" * 513},
            "not a JSON object": {"metadata": "[1]"},
            "are not a JSON object": {"metadata": [1]},
            "is not JSON": {"metadata": '{"a": NaN}'},
            "Expecting": {"metadata": "{"},
            "too deeply": {"metadata": "[" * 100_000},
            "256 KiB": {"metadata": {"a": "b" * (256 << 10)}},
            "error_code has more": {"error_code": "c" * 129},
            "error_message has more": {"error_message": "m" * 4097},
            "time zone": {"timestamp": datetime(2026, 11, 20)},
        }
        cursor = Cursor()
        for text, change in wrong.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                insert_outbox(cursor, replace(FULL, **change))
        self.assertEqual(cursor.calls, [])


if __name__ == "__main__":
    unittest.main()
