"""Serves an inbox by WSGI, Flask and ASGI. An adapter reads at most 1 MiB, passes the raw bytes, and sets nothing
else.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from ._inbox import TOO_LARGE, Inbox
from ._message import MAX_BODY, Request, Response

_LINGER = 2.0  # seconds
_CHUNK = 64 << 10

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def wsgi_app(inbox: Inbox[Any]) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """Returns a WSGI application (PEP 3333) that answers each request by the inbox.

    HTTP message signatures cover the URL as it was sent. WSGI decodes it, but most servers have it in REQUEST_URI or
    RAW_URI, which is used; for wsgiref see `RequestHandler`. With another server a callback URL that has
    percent-encoded characters in its path may be refused.
    """

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = _wsgi_body(environ)
        response = inbox.handle(_wsgi_request(environ, body))
        text = response.body.encode("utf-8", "replace")
        headers = _headers(response, text)
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", headers)
        return [text]

    return app


def flask_view(inbox: Inbox[Any]) -> Callable[..., Any]:
    """Returns a view of Flask: `app.add_url_rule("/hooks", view_func=flask_view(inbox), methods=["POST", "OPTIONS"])`.
    Without OPTIONS, Flask answers the handshake of CloudEvents itself, and it fails. The endpoint of the view is named
    "spendhook"; for several inboxes give several ones: `add_url_rule("/hooks", "ledger", flask_view(inbox), …)`.
    """
    import flask

    def spendhook(**_: Any) -> Any:
        request = flask.request
        if request.content_length is None:
            response = inbox.handle(_wsgi_request(request.environ, request.stream.read(MAX_BODY + 1)))
        elif request.content_length > MAX_BODY:
            response = TOO_LARGE
        else:  # get_data returns it even if it was read before
            response = inbox.handle(_wsgi_request(request.environ, request.get_data()))
        text = response.body.encode("utf-8", "replace")
        return flask.Response(text, response.status, _headers(response, text))

    return spendhook


def asgi_app(inbox: Inbox[Any]) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Returns an ASGI application that answers each request by the inbox, in a thread, since stores block.

    It works alone, or as a route of Starlette, `Route("/hooks", asgi_app(inbox))`, and FastAPI,
    `app.add_route("/hooks", asgi_app(inbox))`: without methods, since the handshake of CloudEvents is OPTIONS. Do not
    mount it: a mount redirects `/hooks` to `/hooks/`, and Spendhook follows no redirects. The event loop must be that of
    asyncio.
    """
    return _AsgiApp(inbox)


class _AsgiApp:
    """An object, since Starlette takes a function for one that gets its own kind of request."""

    def __init__(self, inbox: Inbox[Any]) -> None:
        self._inbox = inbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"an inbox does not speak {scope['type']}")
        body = await _asgi_body(receive)
        if body is None:
            return
        response = await asyncio.to_thread(self._inbox.handle, _asgi_request(scope, body))
        text = response.body.encode("utf-8", "replace")
        headers = [(name.lower().encode(), value.encode()) for name, value in _headers(response, text)]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": text})


class RequestHandler(WSGIRequestHandler):
    """A handler for wsgiref that passes the URL as it was sent:
    `make_server("127.0.0.1", 3000, wsgi_app(inbox), handler_class=RequestHandler)`. It logs nothing.
    """

    timeout = 30  # seconds for a read

    def get_environ(self) -> Environ:
        """Adds REQUEST_URI."""
        environ: Environ = super().get_environ()
        environ["REQUEST_URI"] = self.requestline.split()[1]
        return environ

    def handle(self) -> None:
        """Reads what is left of a body that is too large: else the client may get no answer."""
        super().handle()
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER)
            for _ in range(8 * MAX_BODY // _CHUNK):
                if not self.connection.recv(_CHUNK):
                    break
        except OSError:
            pass  # the client has gone

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing."""


def _headers(response: Response, text: bytes) -> list[tuple[str, str]]:
    if response.status == 204:
        return []
    return [
        *response.headers,
        ("Content-Type", "text/plain; charset=utf-8"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(text))),
    ]


def _wsgi_body(environ: Environ) -> bytes:
    """Reads the body, or one byte more than is accepted."""
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        return _read(stream, MAX_BODY + 1)
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isascii() or not length.isdigit():
        return b""
    return _read(stream, min(int(length[:18]), MAX_BODY + 1))


def _read(stream: Any, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        chunk = stream.read(min(size - len(body), _CHUNK))
        if not chunk:
            break
        body += chunk
    return bytes(body)


def _wsgi_request(environ: Environ, body: bytes) -> Request:
    headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-")] = environ[name]
    return Request(environ["REQUEST_METHOD"], _wsgi_url(environ), headers, body)


def _wsgi_url(environ: Environ) -> str:
    url: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    if url.startswith("/"):
        return url
    if "://" in url:  # the absolute form of RFC 9112 section 3.2.2
        parts = urllib.parse.urlsplit(url)
        return urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
    url = urllib.parse.quote(path, safe="/-._~!$&'()*+,;=:@") or "/"
    return f"{url}?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else url


async def _asgi_body(receive: Receive) -> bytes | None:
    """Reads the body, or a little more than is accepted; None if the client has gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_BODY or not message.get("more_body", False):
            return bytes(body)


def _asgi_request(scope: Scope, body: bytes) -> Request:
    path = scope.get("raw_path") or urllib.parse.quote(scope["path"], safe="/-._~!$&'()*+,;=:@").encode()
    url = path.partition(b"?")[0].decode("latin-1")  # some servers leave the query in it
    if scope.get("query_string"):
        url += "?" + scope["query_string"].decode("latin-1")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return Request(scope["method"], url, headers, body)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
