"""The adapters, over real servers where that matters."""

from __future__ import annotations

import asyncio
import http.client
import io
import threading
import unittest
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import make_server
from wsgiref.util import setup_testing_defaults

from spendhook import (
    MAX_BODY,
    Event,
    Inbox,
    MemoryStore,
    Request,
    RequestHandler,
    Response,
    Verifier,
    asgi_app,
    flask_view,
    wsgi_app,
)
from support import SECRET, Clock, delivery, event_body, needs

ORIGIN = "spendhook.example.com"
URL = "/hooks/caf%C3%A9%2Fbar?tenant=a%20b&x=1+2"


class Recording(Inbox[None]):
    """An inbox that notes what an adapter passes."""

    def __init__(self) -> None:
        verifier = Verifier(secrets=[SECRET], now=Clock())
        super().__init__(verifier=verifier, store=MemoryStore(), work=self.work_on, origin=ORIGIN)
        self.requests: list[Request] = []
        self.worked: list[str] = []

    def work_on(self, event: Event, _: None) -> None:
        self.worked.append(event.id)

    def handle(self, request: Request) -> Response:
        self.requests.append(request)
        return super().handle(request)


def lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


class AdapterTests:
    """Each adapter answers these requests in the same way."""

    inbox: Recording
    answered: dict[str, str]  # the headers of the last answer, by their names in lower case
    url = URL
    send: Callable[[str, str, dict[str, str], bytes], tuple[int, bytes]]
    assertEqual: Callable[..., None]
    assertLessEqual: Callable[..., None]

    def post(self, request: Request) -> tuple[int, bytes]:
        headers = {**dict(request.headers), "Content-Type": "application/json"}
        return self.send("POST", URL, headers, request.body)

    def test_a_delivery(self) -> None:
        body = event_body("a") + b"\r\n\xff\x00"
        self.assertEqual(self.post(delivery("a", body)), (204, b""))
        [request] = self.inbox.requests
        self.assertEqual((request.method, request.url, request.body), ("POST", self.url, body))
        self.assertEqual(request.header("content-type"), "application/json")
        self.assertEqual(request.header("webhook-id"), "a")
        self.assertEqual(self.inbox.worked, ["a"])

    def test_refusals_and_challenges(self) -> None:
        self.assertEqual(self.send("POST", URL, {}, b"")[0], 401)
        self.assertEqual(self.send("GET", URL, {}, b"")[0], 405)
        body = event_body("c", {"challenge": "YCNQ2-é"}, "SUBSCRIBER_CHALLENGE")
        self.assertEqual(self.post(delivery("c", body)), (200, "YCNQ2-é".encode()))

    def test_a_handshake_of_cloud_events(self) -> None:
        self.assertEqual(self.send("OPTIONS", URL, {"WebHook-Request-Origin": ORIGIN}, b""), (200, b""))
        self.assertEqual(self.answered["webhook-allowed-origin"], ORIGIN)
        self.assertEqual(self.answered["allow"], "POST")
        self.assertEqual(self.send("OPTIONS", URL, {"WebHook-Request-Origin": "evil.example.com"}, b"")[0], 405)
        self.assertEqual(self.answered.get("webhook-allowed-origin"), None)
        self.assertEqual(self.answered["allow"], "POST")

    def test_large_bodies(self) -> None:
        self.assertEqual(self.post(delivery("a", b" " * MAX_BODY))[0], 204)
        self.assertEqual(self.post(delivery("b", b" " * (MAX_BODY + 1)))[0], 413)
        self.assertEqual(self.post(delivery("b", b" " * (3 * MAX_BODY)))[0], 413)
        self.assertEqual(self.inbox.worked, ["a"])


class AdapterTest(unittest.TestCase):
    def setUp(self) -> None:
        self.inbox = Recording()


class WsgirefTest(AdapterTests, AdapterTest):
    def setUp(self) -> None:
        super().setUp()
        self.server = make_server("127.0.0.1", 0, wsgi_app(self.inbox), handler_class=RequestHandler)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            self.answered = lower(response.getheaders())
            return response.status, response.read()
        finally:
            connection.close()


class WsgiTest(AdapterTest):
    """What servers put into the environment."""

    def call(self, body: bytes, **environ: Any) -> list[str]:
        environ = {"wsgi.input": io.BytesIO(body), "REQUEST_METHOD": "POST", **environ}
        setup_testing_defaults(environ)
        answers: list[str] = []
        b"".join(wsgi_app(self.inbox)(environ, lambda status, headers: answers.append(status)))
        return answers

    def test_urls(self) -> None:
        for environ, url in (
            ({"REQUEST_URI": "/a%2Fb?c=%20", "PATH_INFO": "/a/b"}, "/a%2Fb?c=%20"),
            ({"RAW_URI": "/a%2Fb", "PATH_INFO": "/a/b"}, "/a%2Fb"),
            ({"REQUEST_URI": "http://other.example.com/a%2Fb?c", "PATH_INFO": "/a/b"}, "/a%2Fb?c"),
            (
                {"SCRIPT_NAME": "/hooks", "PATH_INFO": "/a b\xc3\xa9", "QUERY_STRING": "c=%20"},
                "/hooks/a%20b%C3%A9?c=%20",
            ),
            ({"SCRIPT_NAME": "", "PATH_INFO": ""}, "/"),
        ):
            with self.subTest(environ):
                self.call(b"", **environ)
                self.assertEqual(self.inbox.requests[-1].url, url)

    def test_bodies(self) -> None:
        for environ, body in (
            ({"CONTENT_LENGTH": "3"}, b"abc"),
            ({"CONTENT_LENGTH": ""}, b""),
            ({}, b""),
            ({"CONTENT_LENGTH": "-1"}, b""),
            ({"CONTENT_LENGTH": "x"}, b""),
            ({"CONTENT_LENGTH": "9" * 100}, b"abcdef"),
            ({"wsgi.input_terminated": True}, b"abcdef"),
        ):
            with self.subTest(environ):
                self.assertEqual(self.call(b"abcdef", **environ), ["401 Unauthorized"])
                self.assertEqual(self.inbox.requests[-1].body, body)


@needs("flask")
class FlaskTest(AdapterTests, AdapterTest):
    def setUp(self) -> None:
        super().setUp()
        import flask

        self.app = flask.Flask("test")
        methods = ["GET", "POST", "OPTIONS"]
        self.app.add_url_rule("/hooks/<path:rest>", view_func=flask_view(self.inbox), methods=methods)

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        environ = {"REQUEST_URI": url}  # as servers do; the test client makes another one
        response = self.app.test_client().open(
            url, method=method, headers=headers, data=body, environ_overrides=environ
        )
        self.answered = lower(response.headers.items())
        return response.status_code, response.data

    def test_a_body_that_was_read_before(self) -> None:
        import flask

        self.app.before_request(lambda: flask.request.get_data() and None)
        self.assertEqual(self.post(delivery("a"))[0], 204)


class AsgiTest(AdapterTests, AdapterTest):
    """Speaks ASGI, without a server."""

    def setUp(self) -> None:
        super().setUp()
        self.app: Any = asgi_app(self.inbox)

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        path, _, query = url.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": "/decoded",
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        half = len(body) // 2
        chunks = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:]},
        ]
        first, second = self.run_app(scope, chunks)
        self.answered = lower((name.decode(), value.decode()) for name, value in first["headers"])
        return first["status"], second["body"]

    def run_app(self, scope: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        return sent

    def test_lifespan(self) -> None:
        sent = self.run_app({"type": "lifespan"}, [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        self.assertEqual(
            [message["type"] for message in sent], ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        )

    def test_a_client_that_has_gone(self) -> None:
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
        self.assertEqual(self.run_app({"type": "http"}, messages), [])

    def test_other_protocols(self) -> None:
        with self.assertRaises(RuntimeError):
            self.run_app({"type": "websocket"}, [])

    def test_without_a_raw_path(self) -> None:
        scope = {"type": "http", "method": "POST", "path": "/a bé", "query_string": b"", "headers": []}
        self.run_app(scope, [{"type": "http.request", "body": b""}])
        self.assertEqual(self.inbox.requests[-1].url, "/a%20b%C3%A9")


@needs("starlette", "uvicorn")
class StarletteTest(AdapterTests, AdapterTest):
    """Within Starlette, served by uvicorn."""

    def test_a_path_without_a_slash(self) -> None:
        self.assertEqual(self.send("POST", "/hooks", dict(delivery("a").headers), delivery("a").body)[0], 204)

    def setUp(self) -> None:
        super().setUp()
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [Route(path, asgi_app(self.inbox)) for path in ("/hooks", "/hooks/{rest:path}")]
        app = Starlette(routes=routes)
        started = threading.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets)
                started.set()

            def install_signal_handlers(self) -> None:
                pass  # it does not run in the main thread

        self.server = Server(uvicorn.Config(app, port=0, log_level="critical"))
        thread = threading.Thread(target=self.server.run, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(setattr, self.server, "should_exit", True)
        self.assertTrue(started.wait(10))
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            self.answered = lower(response.getheaders())
            return response.status, response.read()
        finally:
            connection.close()


if __name__ == "__main__":
    unittest.main()
