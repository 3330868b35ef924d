"""Receives deliveries of Spendhook and stores each event once. It needs the standard library only.
Its settings are environment variables, which examples/README.md explains."""

import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY = 1 << 20  # larger than the body of any delivery
INBOX = os.environ.get("INBOX", "inbox")
SECRETS = os.environ.get("SPENDHOOK_SECRET", "").split()  # two while a secret rotates
ORIGIN = os.environ.get("SPENDHOOK_ORIGIN", "")  # the host name of the daemon


def verified(headers, body):
    """Checks a signature of Standard Webhooks 1.0.0: the HMAC-SHA256 of id, timestamp and body,
    with a dot between them. The key is the decoded secret."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > 5 * 60:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + body
    for secret in SECRETS:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        want = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        for signature in headers.get("webhook-signature", "").split():
            if hmac.compare_digest(signature.encode(), want.encode()):
                return True
    return False


def store(event_id, body):
    """Writes the file of an event unless the file exists: an event may be delivered more than
    once, always with the same id. The file is complete or does not exist."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", event_id):
        raise ValueError(f"invalid event id {event_id!r}")
    with tempfile.NamedTemporaryFile(dir=INBOX, prefix=".new-") as temporary:
        temporary.write(body)
        temporary.flush()
        os.fsync(temporary.fileno())
        try:
            os.link(temporary.name, os.path.join(INBOX, event_id + ".json"))
        except FileExistsError:
            return
    folder = os.open(INBOX, os.O_RDONLY)
    os.fsync(folder)  # so that the name of the file survives a power failure too
    os.close(folder)
    print(f"received {event_id}\n", end="", flush=True)  # one write, because other threads print too


def challenge(body):
    """Returns the text that the answer to a challenge repeats; "" for any other message. Answer no
    challenge whose signature is not valid."""
    try:
        message = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(message, dict) or message.get("event") != "SUBSCRIBER_CHALLENGE":
        return ""
    return message["metadata"]["challenge"]


class Receiver(BaseHTTPRequestHandler):
    """Stores the event of a delivery, then answers. Process the event afterwards, from the
    inbox: Spendhook waits 15 s for an answer."""

    timeout = 30  # seconds for a request

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return self.answer(400)
        body = self.rfile.read(int(length))
        if not verified(self.headers, body):
            return self.answer(401)
        if text := challenge(body):
            return self.answer(200, text)
        try:
            store(self.headers["webhook-id"], body)
        except Exception as error:
            print(error, file=sys.stderr)
            return self.answer(500)  # Spendhook retries
        self.answer(204)

    def do_OPTIONS(self):
        """Answers the daemon that asks, in the format cloudevents, whether it may deliver. It is not
        signed, so nobody else gets consent."""
        headers = {"Allow": "POST"}
        if not ORIGIN or self.headers.get("WebHook-Request-Origin", "").lower() != ORIGIN.lower():
            return self.answer(405, headers=headers)
        self.answer(200, headers={**headers, "WebHook-Allowed-Origin": ORIGIN, "WebHook-Allowed-Rate": "*"})

    def answer(self, status, text="", headers={}):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def catch_up():
    """Reads the missed events from the feed, after the last event that catch_up has read."""
    context = ssl.create_default_context(cafile=os.environ.get("SPENDHOOK_CACERT"))
    if certificate := os.environ.get("SPENDHOOK_CLIENT_CERT"):
        context.load_cert_chain(certificate, os.environ.get("SPENDHOOK_CLIENT_KEY"))
    path = os.path.join(INBOX, ".after")
    try:
        with open(path, encoding="ascii") as file:
            after = int(file.read())
    except FileNotFoundError:
        after = 0
    feed = f"{os.environ['SPENDHOOK_URL']}/api/v1/subscribers/{os.environ['SPENDHOOK_SUBSCRIBER']}/feed"
    more = True
    while more:
        request = urllib.request.Request(
            f"{feed}?after={after}", headers={"Authorization": "Bearer " + os.environ["SPENDHOOK_TOKEN"]})
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            page = json.load(answer)
        for event in page["content"]:
            if "body" in event:  # else it is gone
                store(event["id"], event["body"].encode())
        after, more = page["next"], page["more"]
        with open(path, "w", encoding="ascii") as file:
            file.write(str(after))
    print("caught up to", after, flush=True)


def main():
    if not SECRETS:
        sys.exit("SPENDHOOK_SECRET is not set")
    for secret in SECRETS:  # with an empty secret anybody can sign
        if len(base64.b64decode(secret.removeprefix("whsec_"))) < 24:
            sys.exit("SPENDHOOK_SECRET is not whsec_ and base64 of at least 24 bytes")
    os.makedirs(INBOX, mode=0o700, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    if "SPENDHOOK_URL" in os.environ:
        threading.Thread(target=catch_up, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
