"""The emitter against scripted answers."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import ssl
import tempfile
import unittest
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

from spendhook import (
    ApiError,
    ConnectionFailed,
    Credentials,
    EmitFailed,
    Emitter,
    EventRefused,
    Failure,
    OutgoingEvent,
    Result,
    Status,
)
from support import NOW, Clock, Server, needs, reply

Answer = tuple[int, dict[str, str], bytes]
CUT: Answer = (0, {}, b"")


def event(id: str, **more: Any) -> OutgoingEvent:
    return OutgoingEvent(**{"id": id, "event": "PAYMENT_PAID", "timestamp": "2026-11-20T09:30:00.000Z", **more})


def problem(status: int, code: str = "ON_PURPOSE", errors: Any = (), **headers: str) -> Answer:
    document = {"code": code, "detail": "on purpose", "errors": errors}
    return reply(document, status, **{"Content_Type": "application/problem+json", **headers})


def certificate(folder: str) -> str:
    """Writes a key and a certificate for 127.0.0.1, and returns the name of the file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1).add_extension(names, critical=False)
    builder = builder.not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2100, 1, 1))
    path = os.path.join(folder, "cert.pem")
    with open(path, "wb") as file:
        encoding = serialization.Encoding.PEM
        file.write(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        file.write(builder.sign(key, hashes.SHA256()).public_bytes(encoding))
    return path


class EmitterTest(unittest.TestCase):
    def setUp(self) -> None:
        self.script: list[Answer] = []
        self.tokens = 0
        self.token_answers: list[Answer] = []
        self.limits: tuple[int, int] | None = None  # bytes and events of a request, as of a proxy
        self.refused: dict[str, list[dict[str, Any]]] = {}
        self.server = Server(self.answer)
        self.addCleanup(self.server.close)
        self.clock = Clock()
        self.emitter = self.make(token="t")

    def make(self, **more: Any) -> Emitter:
        return Emitter(self.server.url, now=self.clock, sleep=self.clock.sleep, jitter=lambda: 1.0, **more)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if path == "/oauth/token":
            if self.token_answers:
                return self.token_answers.pop(0)
            self.tokens += 1
            return reply({"access_token": f"token-{self.tokens}", "token_type": "Bearer", "expires_in": 100})
        if self.script:
            return self.script.pop(0)
        results = []
        if self.limits and (len(body) > self.limits[0] or len(json.loads(body)) > self.limits[1]):
            return 413, {}, b""
        for item in json.loads(body):
            answers = self.refused.get(item["id"])
            results.append({"id": item["id"], "status": "ACCEPTED", **(answers.pop(0) if answers else {})})
        return reply({"results": results}, 207 if any("error" in result for result in results) else 202)

    def bodies(self) -> list[bytes]:
        return [body for _, path, _, body in self.server.requests if path.startswith("/api/v1/events")]

    def test_the_bytes_of_an_event(self) -> None:
        metadata = {
            "amount": Decimal("12.50"),
            "rate": Decimal("1E+3"),
            "name": "Zoë\n",
            "on": True,
            "none": None,
            "n": [1, 0.5, {}],
        }
        at = datetime(2026, 11, 20, 10, 30, tzinfo=timezone(timedelta(hours=1)))
        result = self.emitter.send(
            event("a", timestamp=at, metadata=metadata, error_code="E", error_message="m", company_uuid="c")
        )
        self.assertEqual(result, Result("a", Status.ACCEPTED))
        [body] = self.bodies()
        self.assertEqual(
            body.decode(),
            '[{"id":"a","event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00.000000Z","metadata":{"amount":12.50,"rate":1E+3,'
            '"name":"Zoë\\n","on":true,"none":null,"n":[1,0.5,{}]},"errorCode":"E","errorMessage":"m","companyUuid":"c"}]',
        )
        _, path, headers, _ = self.server.requests[0]
        self.assertEqual(
            (path, headers["authorization"], headers["content-type"]),
            ("/api/v1/events", "Bearer t", "application/json"),
        )

    def test_the_company_of_the_emitter(self) -> None:
        self.make(token="t", company="c").send_all([event("a"), event("b", company_uuid="d")])
        self.assertEqual([item["companyUuid"] for item in json.loads(self.bodies()[0])], ["c", "d"])

    def test_events_that_cannot_be_sent(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for more in (
            {"id": ""}, {"event": ""}, {"timestamp": ""}, {"timestamp": None}, {"timestamp": True}, {"timestamp": datetime(2026, 11, 20)},
            {"metadata": {"n": float("nan")}}, {"metadata": {"n": Decimal("NaN")}}, {"metadata": {"n": {1}}}, {"metadata": {1: 1}},
            {"metadata": {"text": "\ud800"}}, {"metadata": {"deep": deep}},
        ):  # fmt: skip
            with self.subTest(list(more)), self.assertRaises((ValueError, TypeError)):
                self.emitter.send_all([event("good"), event(**{"id": "a", **more})])
        self.assertEqual(self.server.requests, [])

    def test_refusals_are_results(self) -> None:
        error = {"code": "EVENT_CONFLICT", "message": "m", "errors": [{"pointer": "/id"}]}
        self.refused = {"b": [{"status": "CONFLICT", "error": error}], "c": [{"status": "DUPLICATE"}]}
        results = self.emitter.send_all(event(id) for id in "abc")
        failure = Failure("EVENT_CONFLICT", "m", None, [{"pointer": "/id"}])
        self.assertEqual(
            results,
            [Result("a", Status.ACCEPTED), Result("b", Status.CONFLICT, failure), Result("c", Status.DUPLICATE)],
        )
        self.refused = {"b": [{"status": "REJECTED", "error": error}]}
        with self.assertRaisesRegex(EventRefused, "event b was refused, REJECTED: EVENT_CONFLICT m") as caught:
            self.emitter.send(event("b"))
        self.assertEqual(caught.exception.result.status, Status.REJECTED)

    def test_events_that_are_refused_for_a_while_are_sent_again_alone(self) -> None:
        later = {"status": "REJECTED", "error": {"code": "STORAGE_FULL", "message": "m", "retryAfter": 7}}
        sooner = {"status": "REJECTED", "error": {"code": "STORAGE_FULL", "message": "m", "retryAfter": 0}}
        self.refused = {"b": [later, sooner], "c": [sooner]}
        results = self.emitter.send_all(event(id) for id in "abcd")
        self.assertEqual([result.status for result in results], [Status.ACCEPTED] * 4)
        self.assertEqual(
            [[item["id"] for item in json.loads(body)] for body in self.bodies()],
            [["a", "b", "c", "d"], ["b", "c"], ["b"]],
        )
        self.assertEqual(self.clock.slept, [7, 1])

    def test_giving_up_on_events_that_stay_refused(self) -> None:
        later = {"status": "REJECTED", "error": {"code": "STORAGE_FULL", "message": "m", "retryAfter": 25}}
        self.refused = {"b": [later] * 10}
        with self.assertRaisesRegex(
            EmitFailed, "gave up after 60 s: 1 events are still refused: STORAGE_FULL"
        ) as caught:
            self.emitter.send_all(event(id) for id in "abc")
        self.assertEqual(
            [result and result.status for result in caught.exception.results],
            [Status.ACCEPTED, Status.REJECTED, Status.ACCEPTED],
        )
        self.assertEqual(self.clock.slept, [25, 25])

    def test_repeats_have_the_same_bytes(self) -> None:
        self.script = [
            CUT,
            problem(429),
            problem(502),
            problem(503),
            problem(504),
            (202, {"Content-Type": "application/json", "Content-Length": "99"}, b"{"),
        ]
        self.emitter.send(event("a", metadata={"n": 1}))
        self.assertEqual(len(self.bodies()), 7)
        self.assertEqual(len(set(self.bodies())), 1)
        self.assertEqual(self.clock.slept, [0.5, 1, 2, 4, 8, 16])

    def test_jitter(self) -> None:
        self.script = [problem(503)]
        emitter = Emitter(self.server.url, token="t", now=self.clock, sleep=self.clock.sleep, jitter=lambda: 0.0)
        emitter.send(event("a"))
        self.assertEqual(self.clock.slept, [0.25])

    def test_retry_after(self) -> None:
        at = format_datetime(datetime.fromtimestamp(NOW, timezone.utc) + timedelta(seconds=12), usegmt=True)
        self.script = [
            problem(429, Retry_After="3"),
            problem(503, Retry_After=at),
            problem(503, Retry_After="soon"),
            problem(503, Retry_After="0"),
        ]
        self.emitter.send(event("a"))
        self.assertEqual(self.clock.slept, [3, 9, 2, 4])

    def test_giving_up(self) -> None:
        self.script = [problem(503)] * 20
        with self.assertRaisesRegex(EmitFailed, "gave up after 60 s: 503 ON_PURPOSE: on purpose") as caught:
            self.emitter.send(event("a"))
        self.assertIsInstance(caught.exception.__cause__, ApiError)
        self.assertEqual(self.clock.slept, [0.5, 1, 2, 4, 8, 16])
        self.assertEqual(caught.exception.results, [None])

    def test_a_retry_after_beyond_the_time_is_not_waited_for(self) -> None:
        self.script = [problem(429, Retry_After="61")]
        with self.assertRaises(EmitFailed):
            self.emitter.send(event("a"))
        self.assertEqual(self.clock.slept, [])

    def test_other_answers_end_it_with_the_results_so_far(self) -> None:
        for answer in (problem(400), problem(403), problem(500), problem(422), (307, {"Location": self.server.url + "/x"}, b""), reply({}), reply([]),
                       reply({"results": []}), reply({"results": [{"status": "NEW"}]}), (200, {"Content-Type": "text/html"}, b"<html>")):  # fmt: skip
            with self.subTest(answer[2]):
                accepted = reply({"results": [{"id": str(n), "status": "ACCEPTED"} for n in range(1000)]}, 202)
                self.script, before = [accepted, answer], len(self.bodies())
                with self.assertRaises(EmitFailed) as caught:
                    self.emitter.send_all(event(str(n)) for n in range(1002))
                ids = [result and result.id for result in caught.exception.results]
                self.assertEqual(ids, [*(str(n) for n in range(1000)), None, None])
                self.assertEqual(len(self.bodies()) - before, 2)
        self.assertEqual(self.clock.slept, [])
        self.assertNotIn("/x", [path for _, path, _, _ in self.server.requests])

    def test_a_request_with_one_event_is_refused_like_the_event(self) -> None:
        html = {"Content-Type": "text/html"}
        for answer, code in (
            (problem(400, "MALFORMED_BODY", [{"pointer": "/id"}, 5]), "MALFORMED_BODY"),
            (problem(413, "BODY_TOO_LARGE"), "BODY_TOO_LARGE"),
            ((413, html, b"<html>"), "PAYLOAD_TOO_LARGE"),
        ):
            with self.subTest(answer):
                large = [event(id, metadata={"x": "x" * (3 << 20)}) for id in "abc"]  # each has a request of its own
                accepted = reply({"results": [{"id": "a", "status": "ACCEPTED"}]}, 202)
                self.script = [accepted, answer]
                results = self.emitter.send_all(large)
                self.assertEqual(
                    [(result.id, result.status) for result in results],
                    [("a", Status.ACCEPTED), ("b", Status.REJECTED), ("c", Status.ACCEPTED)],
                )
                self.assertEqual([result.error and result.error.code for result in results], [None, code, None])
                self.script = [answer]
                with self.assertRaisesRegex(EventRefused, f"event d was refused, REJECTED: {code}") as caught:
                    self.emitter.send(event("d"))
                error = caught.exception.result.error
                self.assertEqual(error and error.errors, [{"pointer": "/id"}] if code == "MALFORMED_BODY" else [])
        self.assertEqual(self.clock.slept, [])

    def test_other_refusals_do_not_blame_the_event(self) -> None:
        for answer in (problem(400, "INVALID"), problem(422, "INVALID"), (400, {}, b"")):
            self.script = [answer]
            with self.subTest(answer), self.assertRaises(EmitFailed) as caught:
                self.emitter.send(event("a"))
            self.assertEqual(caught.exception.results, [None])
        for answer in (reply({"error": "invalid_scope"}, 400), problem(400, "MALFORMED_BODY"), (413, {}, b"")):
            self.token_answers, before = [answer], len(self.bodies())
            with self.subTest(answer), self.assertRaises(EmitFailed) as caught:
                self.make(credentials=Credentials("id", "secret")).send(event("a"))
            self.assertEqual((caught.exception.results, len(self.bodies())), ([None], before))

    def test_an_array_that_a_proxy_refuses_is_divided(self) -> None:
        self.limits = (1000, 2)
        later = {"status": "REJECTED", "error": {"code": "STORAGE_FULL", "message": "m", "retryAfter": 7}}
        self.refused = {"f": [later]}
        sizes = {"c": 1000, "d": 700}
        results = self.emitter.send_all(event(id, metadata={"x": "x" * sizes.get(id, 300)}) for id in "abcdefg")
        self.assertEqual(
            [(result.id, result.status) for result in results],
            [(id, Status.REJECTED if id == "c" else Status.ACCEPTED) for id in "abcdefg"],
        )
        self.assertEqual(results[2].error and results[2].error.code, "PAYLOAD_TOO_LARGE")
        sent = ["".join(item["id"] for item in json.loads(body)) for body in self.bodies()]
        self.assertEqual(sent, ["abcdefg", "abc", "a", "bc", "b", "c", "defg", "de", "d", "e", "fg", "f"])
        self.assertEqual(self.clock.slept, [7])

    def test_an_error_in_a_part_keeps_the_results_and_the_time_of_the_array(self) -> None:
        later = {"status": "REJECTED", "error": {"code": "STORAGE_FULL", "message": "m", "retryAfter": 40}}
        self.script, self.refused = [problem(400, "MALFORMED_BODY")], {"a": [later], "b": [later]}
        with self.assertRaises(EmitFailed) as caught:
            self.emitter.send_all([event("a"), event("b"), event("c")])
        statuses = [result and result.status for result in caught.exception.results]
        self.assertEqual(statuses, [Status.ACCEPTED, Status.REJECTED, Status.ACCEPTED])
        self.assertEqual(self.clock.slept, [40])

    def test_arrays_are_bounded(self) -> None:
        self.assertEqual(self.emitter.send_all([]), [])
        self.emitter.send_all(event(f"a{n}") for n in range(2001))
        self.assertEqual([len(json.loads(body)) for body in self.bodies()], [1000, 1000, 1])
        self.server.requests.clear()
        size = len('{"id":"b0","event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00.000Z","metadata":{"x":""}}')
        each = (4 << 20) // 4 - size - 1
        self.emitter.send_all(event(f"b{n}", metadata={"x": "x" * each}) for n in range(5))
        sizes = [len(body) for body in self.bodies()]
        self.assertEqual([len(json.loads(body)) for body in self.bodies()], [3, 2])
        self.assertLessEqual(max(sizes), 4 << 20)
        self.server.requests.clear()
        self.emitter.send_all(event(f"c{n}", metadata={"x": "x" * (each - 1)}) for n in range(4))
        self.assertEqual([len(body) for body in self.bodies()], [(4 << 20) - 4 + 1])

    def test_nobody_answers(self) -> None:
        self.server.close()
        with self.assertRaises(EmitFailed) as caught:
            self.emitter.send(event("a"))
        self.assertIsInstance(caught.exception.__cause__, ConnectionFailed)

    def test_tokens_by_credentials(self) -> None:
        emitter = self.make(credentials=Credentials("id:1", "a b%", scope="events:write"))
        for after, token in ((0, "token-1"), (69, "token-1"), (1, "token-2")):
            self.clock.now += after
            emitter.send(event("a"))
            self.assertEqual(self.server.requests[-1][2]["authorization"], "Bearer " + token)
        _, path, headers, body = self.server.requests[0]
        self.assertEqual((path, body), ("/oauth/token", b"grant_type=client_credentials&scope=events%3Awrite"))
        self.assertEqual(base64.b64decode(headers["authorization"].removeprefix("Basic ")), b"id%3A1:a+b%25")
        self.assertNotIn("a b%", repr(Credentials("id:1", "a b%")))

    def test_the_life_of_a_token(self) -> None:
        for life, used in ((20, 10), (0.5, 0.25), (None, 270), (0, 270), ("60", 270), (True, 270), (10**400, 270)):
            with self.subTest(life):
                emitter = self.make(credentials=Credentials("id", "secret"))
                self.token_answers = [reply({"access_token": "first", "expires_in": life})]
                for after, fresh in ((0, False), (used - 0.1, False), (0.1, True)):
                    self.clock.now += after
                    emitter.send(event("a"))
                    self.assertEqual(self.server.requests[-1][2]["authorization"] != "Bearer first", fresh)

    def test_a_refused_token_is_replaced_once(self) -> None:
        emitter = self.make(credentials=Credentials("id", "secret"))
        self.script = [problem(401)]
        emitter.send(event("a"))
        self.assertEqual((self.tokens, len(self.bodies())), (2, 2))
        self.script = [problem(401), problem(401)]
        with self.assertRaisesRegex(EmitFailed, "401"):
            emitter.send(event("a"))
        self.assertEqual((self.tokens, len(self.bodies())), (3, 4))

    def test_the_token_endpoint(self) -> None:
        emitter = self.make(credentials=Credentials("id", "secret"))
        self.token_answers = [problem(503), CUT]
        emitter.send(event("a"))
        self.assertEqual(self.clock.slept, [0.5, 1])
        self.clock.now += 1000
        for answer in (
            reply({"error": "invalid_client", "error_description": "wrong"}, 401),
            reply({}),
            reply([]),
            reply({"access_token": "a\nb", "expires_in": 5}),
            reply({"access_token": "", "expires_in": 5}),
        ):
            self.token_answers = [answer]
            with self.subTest(answer), self.assertRaises(EmitFailed):
                emitter.send(event("a"))
        self.assertEqual(len(self.bodies()), 1)

    @needs("cryptography")
    def test_tls(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = certificate(folder)
            server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server_side.load_cert_chain(path)
            self.server.use_tls(server_side)
            with self.assertRaisesRegex(EmitFailed, "the certificate is not trusted"):
                self.make(token="t").send(event("a"))
            self.assertEqual(self.clock.slept, [], "it is repeated")
            trusting = ssl.create_default_context(cafile=path)
            self.assertEqual(self.make(token="t", context=trusting).send(event("a")).status, Status.ACCEPTED)

    def test_wrong_settings_are_refused(self) -> None:
        for url, more in (
            ("http://api.example.com", {"token": "t"}),
            ("HTTP://api.example.com", {"credentials": Credentials("a", "b")}),
            ("http://127.0.0.1.example.com", {"token": "t"}),
            ("http://localhost@example.com", {"token": "t"}),
            ("ftp://api.example.com", {"token": "t"}),
            ("api.example.com", {"token": "t"}),
            ("https://api.example.com", {}),
            ("https://api.example.com", {"token": "t", "credentials": Credentials("a", "b")}),
        ):
            with self.subTest(url), self.assertRaises(ValueError):
                Emitter(url, **more)  # type: ignore[arg-type]
        Emitter("http://api.example.com", token="t", insecure=True)
        for url in ("https://api.example.com", "http://localhost:8080", "http://[::1]:8080", "http://127.0.0.2"):
            Emitter(url, token="t")


if __name__ == "__main__":
    unittest.main()
