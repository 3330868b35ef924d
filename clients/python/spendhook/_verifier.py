"""Verifies the signatures of deliveries."""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from . import _httpsig
from ._encoding import decode_base64
from ._errors import InvalidMessage
from ._http import check_url
from ._keys import ED25519, KeySet, PublicKey
from ._message import Request

_MIN_SECRET = 24  # bytes; with an empty secret anybody can sign
_MAX_SIGNATURES = 16  # of v1a that are tried: each costs time, and anybody can send them
_ID = re.compile(r"[!-~]+")
_TIMESTAMP = re.compile(r"[0-9]{1,15}")
_ORIGIN = re.compile(r"https?://[^\s/?#@]+(/[!-~]*)?", re.IGNORECASE)


class Verifier:
    """Verifies signatures, and demands each kind that it is configured for. Safe for concurrent use.

    `secrets` are the signing secrets of the subscriber, `whsec_` and base64: several while a secret is rotated. They
    demand a `v1` signature of Standard Webhooks by one of them.

    `keys_url` is `…/.well-known/webhook-keys/{companyUuid}` of the daemon; it needs `spendhook[keys]`. With
    `origin` it demands an HTTP message signature (RFC 9421), without `origin` a `v1a` signature of Standard
    Webhooks, by one of the keys there. Use https: who can change the keys can sign.

    `origin` is the start of the callback URL, up to what the request line has, such as `https://hooks.example.com`.
    It is never taken from the Host header: a message to another receiver could be sent on with that.

    `tolerance` is how many seconds webhook-timestamp may be off, for signatures of Standard Webhooks. HTTP message
    signatures say themselves how long they are valid. `now` is the clock, in unix seconds, and `context` the TLS
    settings with which the keys are read.
    """

    def __init__(
        self,
        *,
        secrets: Sequence[str] = (),
        keys_url: str | None = None,
        origin: str | None = None,
        tolerance: float = 300,
        now: Callable[[], float] = time.time,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if isinstance(secrets, str):
            raise ValueError("secrets is a sequence, not one string")
        if not secrets and not keys_url:
            raise ValueError("a verifier needs secrets or keys_url")
        if origin and not keys_url:
            raise ValueError("origin needs keys_url")
        if origin and (not origin.isascii() or not _ORIGIN.fullmatch(origin)):
            raise ValueError("origin is not the start of an http or https URL, in ASCII")
        self._secrets = [_decode_secret(secret) for secret in secrets]
        self._keys: KeySet | None = None
        if keys_url:
            check_url("keys_url", keys_url)
            self._keys = KeySet(keys_url, now, context)
        self._origin = (origin or "").removesuffix("/")
        self._tolerance = tolerance
        self._now = now

    def verify(self, request: Request) -> None:
        """Returns if each demanded signature is there and valid. Raises InvalidMessage, or KeysUnavailable if that
        cannot be said now. It may read the keys, which takes up to 5 seconds.
        """
        if not _ID.fullmatch(request.header("webhook-id") or ""):
            raise InvalidMessage("webhook-id is missing or malformed")
        if self._secrets:
            self._verify_secrets(request)
        if self._keys:
            try:
                self._verify_keys(request, self._keys.known())
            except (_httpsig.UnknownKey, _NoKeyMatches):  # the keys may have been rotated since they were read
                self._verify_keys(request, self._keys.again())

    def _verify_secrets(self, request: Request) -> None:
        signed = self._signed(request)
        digests = [hmac.digest(secret, signed, hashlib.sha256) for secret in self._secrets]
        for signature in _signatures(request, "v1"):
            if any([hmac.compare_digest(signature, digest) for digest in digests]):
                return
        raise InvalidMessage("no v1 signature is valid")

    def _verify_keys(self, request: Request, keys: Sequence[PublicKey]) -> None:
        if self._origin:
            _httpsig.verify(request, self._origin, keys, self._now())
            return
        signed = self._signed(request)
        usable = [key for key in keys if key.algorithm == ED25519]
        for signature in islice(_signatures(request, "v1a"), _MAX_SIGNATURES):
            if any(key.verifies(signature, signed) for key in usable):
                return
        raise _NoKeyMatches("no v1a signature is valid")

    def _signed(self, request: Request) -> bytes:
        """Returns what Standard Webhooks 1.0.0 signs, if its time is right."""
        timestamp = request.header("webhook-timestamp") or ""
        if not _TIMESTAMP.fullmatch(timestamp):
            raise InvalidMessage("webhook-timestamp is missing or not a number")
        if abs(int(self._now()) - int(timestamp)) > self._tolerance:
            raise InvalidMessage("webhook-timestamp is of another time")
        return f"{request.header('webhook-id')}.{timestamp}.".encode() + request.body


class _NoKeyMatches(InvalidMessage):
    """No v1a signature is by one of the keys."""


def _signatures(request: Request, version: str) -> Iterable[bytes]:
    for text in (request.header("webhook-signature") or "").split(" "):
        found, _, signature = text.partition(",")
        if found == version:
            try:
                yield decode_base64(signature)
            except ValueError:
                continue


def _decode_secret(secret: str) -> bytes:
    try:
        key = decode_base64(secret.removeprefix("whsec_"))
    except ValueError:
        key = b""
    if len(key) < _MIN_SECRET:  # the secret itself must not be in the message
        raise ValueError(f"a signing secret is not whsec_ and base64 of at least {_MIN_SECRET} bytes")
    return key
