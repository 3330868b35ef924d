"""What the vectors do not have: settings, and reading the keys."""

from __future__ import annotations

import base64
import json
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from spendhook import InvalidMessage, KeysUnavailable, Request, Verifier
from support import NOW, SECRET, VECTORS, Clock, Server, delivery, needs, reply


class SettingsTest(unittest.TestCase):
    def test_wrong_settings_are_refused(self) -> None:
        short = "whsec_" + base64.b64encode(b"x" * 23).decode()
        for settings in (
            {},
            {"secrets": []},
            {"secrets": [""]},
            {"secrets": ["whsec_"]},
            {"secrets": [short]},
            {"secrets": [SECRET, short]},
            {"secrets": [SECRET + "\n"]},
            {"secrets": [SECRET.replace("=", "")]},
            {"secrets": SECRET},
            {"secrets": [SECRET], "origin": "https://hooks.example.com"},
            {"keys_url": "/keys"},
            {"keys_url": "file:///keys"},
            {"keys_url": "http://127.0.0.1/", "origin": "hooks.example.com"},
            {"keys_url": "http://127.0.0.1/", "origin": "https://hooks.example.com?a=1"},
            {"keys_url": "http://127.0.0.1/", "origin": "https://user@hooks.example.com"},
            {"keys_url": "http://127.0.0.1/", "origin": "https://hooks.exämple.com"},
        ):
            with self.subTest(settings), self.assertRaises(ValueError) as caught:
                Verifier(**settings)  # type: ignore[arg-type]
            self.assertNotIn(short, str(caught.exception))

    def test_without_cryptography_only_keys_are_refused(self) -> None:
        with mock.patch.dict("sys.modules", {"cryptography": None}):
            Verifier(secrets=[SECRET], now=Clock()).verify(delivery("a"))
            with self.assertRaisesRegex(ImportError, r"pip install 'spendhook\[keys\]'"):
                Verifier(keys_url="https://api.example.com/keys")

    def test_the_tolerance_counts(self) -> None:
        clock = Clock(NOW + 11)
        with self.assertRaises(InvalidMessage):
            Verifier(secrets=[SECRET], tolerance=10, now=clock).verify(delivery("a"))
        Verifier(secrets=[SECRET], tolerance=11, now=clock).verify(delivery("a"))

    def test_headers_are_in_any_case_and_pairs(self) -> None:
        request = delivery("a")
        headers = dict(request.headers)
        verifier = Verifier(secrets=[SECRET], now=Clock())
        verifier.verify(Request("POST", "/", [(name.upper(), value) for name, value in headers.items()], request.body))
        twice = [*headers.items(), ("webhook-id", "a")]
        with self.assertRaises(InvalidMessage):
            verifier.verify(Request("POST", "/", twice, request.body))

    def test_odd_headers_are_refused(self) -> None:
        request = delivery("a")
        for name, value in (
            ("Webhook-Id", "a\nb"),
            ("Webhook-Id", "é"),
            ("Webhook-Timestamp", "9" * 5000),
            ("Webhook-Timestamp", "١٧٩٥١٦٧٠٠٠"),
            ("Webhook-Signature", "v1," + "A" * 100_000),
            ("Webhook-Signature", "v1,é"),
        ):
            with self.subTest(name + value[:10]), self.assertRaises(InvalidMessage):
                headers = {**dict(request.headers), name: value}
                Verifier(secrets=[SECRET], now=Clock()).verify(Request("POST", "/", headers, request.body))


@needs("cryptography")
class KeysTest(unittest.TestCase):
    """Reads keys for a message of the vectors."""

    def setUp(self) -> None:
        cases = {case["name"]: case for case in json.loads(VECTORS.read_bytes())["cases"]}
        self.message, self.v1a = cases["rfc9421 ed25519 valid"], cases["v1a valid"]
        self.clock = Clock(json.loads(VECTORS.read_bytes())["now"])
        self.answer: Callable[[], tuple[int, dict[str, str], bytes]] = self.known
        self.server = Server(lambda *_: self.answer())
        self.addCleanup(self.server.close)
        self.verifier = self.make(self.message)

    def make(self, case: dict[str, Any]) -> Verifier:
        return Verifier(keys_url=self.server.url + "/keys", origin=case["origin"] or None, now=self.clock)

    def known(self) -> tuple[int, dict[str, str], bytes]:
        return reply(self.message["keys"], Cache_Control="public, max-age=600")

    def none(self) -> tuple[int, dict[str, str], bytes]:
        return reply({"keys": []})

    def verify(self, case: dict[str, Any] | None = None, verifier: Verifier | None = None) -> None:
        case = case or self.message
        request = Request(case["method"], case["url"], case["headers"], base64.b64decode(case["body"]))
        (verifier or self.verifier).verify(request)

    def reads(self) -> int:
        return len(self.server.requests)

    def test_keys_are_kept_for_their_max_age(self) -> None:
        start = self.clock.now
        for after, reads in ((0, 1), (299, 1), (310, 1)):
            self.clock.now = start + after
            self.verify()
            self.assertEqual(self.reads(), reads)
        self.clock.now = start + 601
        with self.assertRaises(InvalidMessage):  # the message is too old by now
            self.verify()
        self.assertEqual(self.reads(), 2)

    def test_keys_of_a_later_time_are_read_again(self) -> None:
        self.clock.now += 10
        self.verify()
        self.clock.now -= 5  # it has jumped back: nobody knows how old the keys are
        self.verify()
        self.assertEqual(self.reads(), 2)

    def test_a_short_max_age_is_five_minutes(self) -> None:
        self.answer = lambda: reply(self.message["keys"], Cache_Control="max-age=1")
        self.verify()
        self.clock.now += 299
        self.verify()
        self.assertEqual(self.reads(), 1)
        self.clock.now += 2
        self.verify()
        self.assertEqual(self.reads(), 2)

    def test_an_unknown_key_is_read_again_every_five_seconds_at_most(self) -> None:
        for case in (self.message, self.v1a):
            with self.subTest(case["name"]):
                self.answer, before, verifier = self.none, self.reads(), self.make(case)
                for _ in range(3):
                    with self.assertRaises(InvalidMessage):
                        self.verify(case, verifier)
                self.assertEqual(self.reads() - before, 1)
                self.clock.now += 5
                self.answer = lambda: reply(case["keys"])  # noqa: B023
                self.verify(case, verifier)
                self.assertEqual(self.reads() - before, 2)

    def test_keys_that_cannot_be_read(self) -> None:
        for name, answer in {
            "503": lambda: reply({}, 503),
            "a redirect": lambda: (302, {"Location": self.server.url + "/elsewhere"}, b""),
            "no JSON": lambda: (200, {}, b"<html>"),
            "not UTF-8": lambda: (200, {}, b"\xff\xff"),
            "no set": lambda: reply([1]),
            "no keys": lambda: reply({"keys": {}}),
            "deep": lambda: (200, {}, b"[" * 60_000),
            "too large": lambda: reply({"keys": [], "more": "x" * (64 << 10)}),
            "cut": lambda: (200, {"Content-Length": "100"}, b'{"keys":[]}'),
            "cut within a chunk": lambda: (200, {"Transfer-Encoding": "chunked"}, b'b\r\n{"keys":'),
            "no answer": lambda: (0, {}, b""),
        }.items():
            with self.subTest(name):
                self.answer = answer
                verifier, before = self.make(self.message), self.reads()
                for _ in range(2):
                    with self.assertRaises(KeysUnavailable):
                        self.verify(verifier=verifier)
                self.assertEqual(self.reads() - before, 1, "it is read again at once")
                self.clock.now += 5
                self.answer = self.known
                self.verify(verifier=verifier)
                self.assertNotIn("/elsewhere", [path for _, path, _, _ in self.server.requests])

    def test_keys_that_are_too_old_and_cannot_be_read_are_not_used(self) -> None:
        self.answer = lambda: reply(self.message["keys"])
        self.verify()
        self.clock.now += 301
        self.answer = lambda: reply({}, 500)
        with self.assertRaises(KeysUnavailable):
            self.verify()

    def test_chunks(self) -> None:
        status, headers, body = self.known()
        text = b"%x\r\n%s\r\n1\r\n \r\n0\r\n\r\n" % (len(body), body)
        self.answer = lambda: (status, {**headers, "Transfer-Encoding": "chunked"}, text)
        self.verify()

    def test_a_set_that_arrives_too_slowly(self) -> None:
        moments = iter(range(0, 1000, 3))
        with mock.patch("time.monotonic", lambda: next(moments)), self.assertRaises(KeysUnavailable):
            status, headers, body = self.known()
            text = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            self.answer = lambda: (status, {**headers, "Transfer-Encoding": "chunked"}, text)
            self.verify()

    def test_odd_keys_are_passed_over(self) -> None:
        good = self.message["keys"]["keys"]
        odd = [None, 5, {}, {"kid": 5}, {"kty": "OKP", "crv": "Ed25519"}, {"kty": [], "crv": {}}, {"kty": "EC", "crv": "P-256"},
               {**good[0], "kid": [], "alg": {}}, {**good[0], "x": "é"}, {**good[0], "x": 5}]  # fmt: skip
        self.answer = lambda: reply({"keys": [*odd, *good]})
        self.verify()

    def test_the_url_must_continue_the_origin(self) -> None:
        case = dict(self.message)
        case["url"], case["origin"] = ".example.com/hooks/spendhook", "https://ledger"
        with self.assertRaisesRegex(InvalidMessage, "slash"):
            self.verify(case, self.make(case))


if __name__ == "__main__":
    unittest.main()
