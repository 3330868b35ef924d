"""What several tests use: fixed clocks, scripted servers, and signed deliveries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import json
import logging
import os
import ssl
import threading
import unittest
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from spendhook import Request

NOW = 1795167000
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
VECTORS = Path(__file__).resolve().parents[2] / "conformance" / "vectors.json"

logging.getLogger("spendhook").addHandler(logging.NullHandler())  # the output of the tests is theirs
logging.getLogger("spendhook").propagate = False


class Clock:
    """A clock that moves when it is told to, or when somebody sleeps."""

    def __init__(self, now: float = NOW) -> None:
        self.now = float(now)
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Server:
    """An HTTP server that answers with what `answer` returns: status, headers and body. It notes the requests."""

    def __init__(self, answer: Callable[[str, str, Any, bytes], tuple[int, dict[str, str], bytes]]) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers, body))
                status, more, text = answer(self.command, self.path, headers, body)
                if status == 0:  # cut the connection
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text)), **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Speaks TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


JSON = {"Content-Type": "application/json"}


def reply(value: Any, status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """An answer in JSON."""
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return status, {**JSON, **more}, json.dumps(value).encode()


def sign(id: str, body: bytes, at: int = NOW, secret: str = SECRET) -> str:
    """A v1 signature."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{at}.".encode() + body, hashlib.sha256)).decode()


def delivery(id: str, body: bytes | None = None, sequence: int | None = 1, metadata: Any = None) -> Request:
    """A valid delivery of an event."""
    if body is None:
        body = event_body(id, metadata)
    headers = {"Webhook-Id": id, "Webhook-Timestamp": str(NOW), "Webhook-Signature": sign(id, body)}
    if sequence is not None:
        headers["Webhook-Sequence"] = str(sequence)
    return Request("POST", "/hooks", headers, body)


def event_body(id: str, metadata: Any = None, kind: str = "PAYMENT_PAID") -> bytes:
    """The body of a delivery in the full format."""
    return json.dumps(
        {
            "id": id,
            "companyUuid": "c",
            "event": kind,
            "timestamp": "2026-11-20T09:30:00.000Z",
            "metadata": metadata or {},
        }
    ).encode()


def needs(*modules: str) -> Callable[[Any], Any]:
    """Skips a test whose packages are missing, unless SPENDHOOK_REQUIRE_ALL=1."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if os.environ.get("SPENDHOOK_REQUIRE_ALL") == "1":
        missing = []
    return unittest.skipIf(
        missing, f"not installed: {', '.join(missing)} (SPENDHOOK_REQUIRE_ALL=1 makes this an error)"
    )
