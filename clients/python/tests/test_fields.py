"""Structured fields, with examples of RFC 9651."""

from __future__ import annotations

import unittest
from decimal import Decimal

from spendhook._fields import Date, DisplayString, InnerList, Item, Token, parse_dictionary, serialize


class FieldsTest(unittest.TestCase):
    def test_values(self) -> None:
        for text, value in {
            "5": 5,
            "-15": -15,
            "999999999999999": 999999999999999,
            "4.5": Decimal("4.5"),
            "-0.125": Decimal("-0.125"),
            '"a \\"b\\" \\\\"': 'a "b" \\',
            '""': "",
            "foo123/456:*": Token("foo123/456:*"),
            "*a": Token("*a"),
            ":cHJldGVuZA==:": b"pretend",
            "::": b"",
            "?1": True,
            "?0": False,
            "@1659578233": Date(1659578233),
            '%"f%c3%bc"': DisplayString("fü"),
        }.items():
            with self.subTest(text):
                self.assertEqual(parse_dictionary(f"a={text}")["a"], Item(value, {}))
                inner = InnerList([Item(value, {})], {"p": value})
                serialized = serialize(inner)
                self.assertEqual(parse_dictionary(f"a={serialized}")["a"], inner)
                self.assertEqual(
                    serialized, f"({text});p" if value is True else f"({text});p={text}".replace("True", "?1")
                )

    def test_dictionaries(self) -> None:
        self.assertEqual(parse_dictionary(""), {})
        self.assertEqual(parse_dictionary("  "), {})
        self.assertEqual(list(parse_dictionary("b=1,\t a=2 ,c;x=1 ").items()), [
            ("b", Item(1, {})), ("a", Item(2, {})), ("c", Item(True, {"x": 1}))])  # fmt: skip
        self.assertEqual(parse_dictionary("a=1, b=2, a=3"), {"a": Item(3, {}), "b": Item(2, {})})
        self.assertEqual(
            parse_dictionary('a=( "x";k  y );q'),
            {"a": InnerList([Item("x", {"k": True}), Item(Token("y"), {})], {"q": True})},
        )
        self.assertEqual(serialize(InnerList([], {})), "()")

    def test_malformed_ones_are_refused(self) -> None:
        for text in (
            "a=", "=1", "A=1", "1=1", "a=1,", "a=1, ,b=2", "a=1 b=2", "a=1;", "a=1;B", "a;;b", "a=(", "a=(1", "a=(1", 'a=("x""y")',
            "a=(1,2)", "a=((1))", "a=1)", "a=-", "a=--1", "a=+1", "a=1.", "a=.5", "a=1.2345", "a=1234567890123.1", "a=1234567890123456",
            "a=1e5", 'a="', 'a="\\n"', 'a="é"', 'a="\n"', 'a="\x7f"', "a=:", "a=:a:", "a=:YQ:", "a=:Y===:", "a=:YWJj=:", "a=:YQ==YQ==:",
            "a=:Y Q=:", "a=?2", "a=?", "a=@1.5", "a=@", 'a=%"%C3"', 'a=%"%ff"', 'a=%"é"', "a=é", "a=1\n", "\na=1", "a=1\x00", "a= 1", "\ta=1",
        ):  # fmt: skip
            with self.subTest(text), self.assertRaises(ValueError):
                parse_dictionary(text)


if __name__ == "__main__":
    unittest.main()
