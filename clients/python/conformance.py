"""A receiver and an emitter for the suite in clients/conformance, which tests the libraries of all languages and
explains the environment variables and the paths.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from spendhook import (
    Credentials,
    EmitFailed,
    Emitter,
    Event,
    Feed,
    Inbox,
    OutgoingEvent,
    RequestHandler,
    Result,
    SqlStore,
    Verifier,
    wsgi_app,
)

Answer = tuple[str, Any]


class Program:
    """One inbox and one emitter."""

    def __init__(self, env: dict[str, str]) -> None:
        self.database = env["DATABASE"]
        store = SqlStore.sqlite(self.database)
        store.migrate()
        with store.transaction() as transaction:
            transaction.work.execute("CREATE TABLE IF NOT EXISTS worked (id TEXT NOT NULL, sequence BIGINT)")
        verifier = Verifier(
            secrets=env.get("SPENDHOOK_SECRET", "").split(),
            keys_url=env.get("SPENDHOOK_JWKS") or None,
            origin=env.get("ORIGIN") or None,
        )
        access: dict[str, Any] = {"token": env.get("SPENDHOOK_TOKEN") or None}
        if env.get("SPENDHOOK_CLIENT_ID"):
            access = {"credentials": Credentials(env["SPENDHOOK_CLIENT_ID"], env["SPENDHOOK_CLIENT_SECRET"])}
        url = env.get("SPENDHOOK_URL")
        self.emitter = Emitter(url, **access) if url else None
        feed = Feed(url, subscriber=env["SPENDHOOK_SUBSCRIBER"], **access) if url else None
        origin = env.get("SPENDHOOK_ORIGIN")
        self.inbox = Inbox(verifier=verifier, store=store, work=self.work, feed=feed, origin=origin)
        self.hooks = wsgi_app(self.inbox)
        self.failures: dict[str, int] = {}
        self.lock = threading.Lock()

    def work(self, event: Event, cursor: sqlite3.Cursor) -> None:
        """Notes the event. It fails twice if the metadata of the event say so."""
        if event.metadata and event.metadata.get("fail") is True:
            with self.lock:
                self.failures[event.id] = self.failures.get(event.id, 0) + 1
                if self.failures[event.id] <= 2:
                    raise RuntimeError("it fails as it was told to")
        cursor.execute("INSERT INTO worked (id, sequence) VALUES (?, ?)", (event.id, event.sequence))

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Is the WSGI application."""
        path = environ["PATH_INFO"]
        if path == "/hooks" or path.startswith("/hooks/"):
            return self.hooks(environ, start_response)
        routes = {("GET", "/inbox"): self.worked, ("POST", "/catchup"): self.catch_up, ("POST", "/emit"): self.emit}
        route = routes.get((environ["REQUEST_METHOD"], path))
        try:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or "0"))
            status, value = route(body) if route else ("404 Not Found", {"error": "not found"})
        except Exception as error:
            status, value = "500 Internal Server Error", {"error": str(error)}
        text = json.dumps(value).encode()
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
        return [text]

    def worked(self, _: bytes) -> Answer:
        """Answers with the ids of the events that were worked on, in that order."""
        connection = sqlite3.connect(self.database, timeout=10)
        try:
            return "200 OK", [id for (id,) in connection.execute("SELECT id FROM worked ORDER BY rowid")]
        finally:
            connection.close()

    def catch_up(self, _: bytes) -> Answer:
        """Reads the feed."""
        return "200 OK", {"missing": self.inbox.catch_up().missing}

    def emit(self, body: bytes) -> Answer:
        """Sends events."""
        if self.emitter is None:
            raise ValueError("SPENDHOOK_URL is not set")
        try:
            results = self.emitter.send_all(map(outgoing, json.loads(body)))
        except EmitFailed as error:
            known = [result and shown(result) for result in error.results]
            return "500 Internal Server Error", {"error": str(error), "results": known}
        return "200 OK", [*map(shown, results)]


def outgoing(item: dict[str, Any]) -> OutgoingEvent:
    """Reads an event as the API has it."""
    return OutgoingEvent(
        id=item["id"],
        event=item["event"],
        timestamp=item["timestamp"],
        metadata=item.get("metadata"),
        error_code=item.get("errorCode"),
        error_message=item.get("errorMessage"),
        company_uuid=item.get("companyUuid"),
    )


def shown(result: Result) -> dict[str, Any]:
    """Returns a result as the API has it."""
    item: dict[str, Any] = {"id": result.id, "status": result.status}
    if result.error:
        item["error"] = {"code": result.error.code, "message": result.error.message}
    return item


class Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each request."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serves until the process is killed."""
    program = Program(dict(os.environ))
    if os.environ.get("FILL_GAPS") == "1":
        threading.Thread(target=program.inbox.fill_gaps, args=[threading.Event()], daemon=True).start()
    port = int(os.environ.get("PORT") or "0")
    server = make_server("127.0.0.1", port, program.app, server_class=Server, handler_class=RequestHandler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
