"""The keys that a daemon publishes."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable
from typing import Any

from ._encoding import decode_base64url
from ._errors import ConnectionFailed, KeysUnavailable
from ._http import Answer, Client

ED25519 = "ed25519"
ES256 = "ecdsa-p256-sha256"

_SIGNATURE_SIZE = 64
_COORDINATE_SIZE = 32
_MIN_LIFE = 5 * 60.0  # seconds; within these bounds Cache-Control decides
_MAX_LIFE = 24 * 3600.0
_PAUSE = 5.0  # seconds between two reads, after an unknown key or a failure: anybody can send unknown keys
_TIMEOUT = 5.0
_MAX_SIZE = 64 << 10
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age=([0-9]{1,10})\s*(?:,|$)", re.IGNORECASE)


class PublicKey:
    """A key of a JWK Set. `algorithm` is its only one, by the name of RFC 9421."""

    def __init__(self, kid: str, algorithm: str, check: Callable[[bytes, bytes], None]) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self._check = check

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the signature of the message was made with the private key."""
        from cryptography.exceptions import InvalidSignature

        if len(signature) != _SIGNATURE_SIZE:
            return False
        try:
            self._check(signature, message)
        except InvalidSignature:
            return False
        return True


class KeySet:
    """The keys at one address, kept for as long as the daemon says. Safe for concurrent use: one thread reads, the
    others wait.
    """

    def __init__(self, url: str, now: Callable[[], float], context: ssl.SSLContext | None) -> None:
        try:
            import cryptography  # noqa: F401
        except ImportError as error:
            raise ImportError("keys_url needs the package cryptography: pip install 'spendhook[keys]'") from error
        self._url = url
        self._now = now
        self._client = Client(context)
        self._lock = threading.Lock()
        self._tried_at = 0.0
        self._failure: str | None = None
        # Keys, when they were read, and their life; replaced as a whole, so that it is read without the lock.
        self._current: tuple[list[PublicKey], float, float] | None = None

    def known(self) -> list[PublicKey]:
        """Returns the keys, which are read if they are too old. KeysUnavailable if that fails."""
        # Without the lock, since strangers' unknown keys must not delay messages by known ones.
        return self._younger(_MAX_LIFE) or self._get(_MAX_LIFE)

    def again(self) -> list[PublicKey]:
        """Returns the keys after a signature by an unknown one. They are read unless they are only seconds old."""
        return self._get(_PAUSE)

    def _younger(self, age: float) -> list[PublicKey] | None:
        """Returns the keys if they may still be used and were read less than so many seconds ago."""
        if self._current is None:
            return None
        keys, read_at, life = self._current
        return keys if 0 <= self._now() - read_at < min(age, life) else None

    def _get(self, age: float) -> list[PublicKey]:
        """Returns the keys, which it reads unless they are younger."""
        with self._lock:
            return self._locked(age)

    def _locked(self, age: float) -> list[PublicKey]:
        keys = self._younger(age)  # perhaps read by another thread
        if keys is not None:
            return keys
        now = self._now()
        if self._failure is not None and 0 <= now - self._tried_at < _PAUSE:
            raise KeysUnavailable(self._failure)
        self._tried_at = now
        try:
            keys, life = self._read()
        except (ConnectionFailed, OSError, ValueError, RecursionError) as error:
            self._tried_at = self._now()  # the read may have taken as long as the pause
            self._failure = f"read the published keys: {error}"
            raise KeysUnavailable(self._failure) from error
        self._failure, self._current = None, (keys, now, life)
        return keys

    def _read(self) -> tuple[list[PublicKey], float]:
        answer = self._client.send("GET", self._url, {"Accept": "application/json"}, None, _TIMEOUT, _MAX_SIZE)
        if answer.status != 200:
            raise ValueError(f"the answer is {answer.status}")
        document = json.loads(answer.body)
        members = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(members, list):
            raise ValueError("the answer is not a JWK Set")
        return [key for key in map(_public_key, members) if key], _life(answer)


def _life(answer: Answer) -> float:
    found = _MAX_AGE.search(answer.headers.get("Cache-Control", ""))
    return min(max(float(found[1]), _MIN_LIFE), _MAX_LIFE) if found else _MIN_LIFE


def _public_key(jwk: Any) -> PublicKey | None:
    """Reads a JWK: ed25519 (RFC 8037) or P-256 (RFC 7518). None for others, and for those that are not for
    signatures.
    """
    if not isinstance(jwk, dict) or jwk.get("use", "sig") not in ("", "sig"):
        return None
    kid, kind, alg = jwk.get("kid"), (jwk.get("kty"), jwk.get("crv")), jwk.get("alg", "")
    try:
        if kind == ("OKP", "Ed25519") and alg in ("", "EdDSA", "Ed25519"):
            algorithm, check = ED25519, _ed25519(_coordinate(jwk, "x"))
        elif kind == ("EC", "P-256") and alg in ("", "ES256"):
            algorithm, check = ES256, _es256(_coordinate(jwk, "x") + _coordinate(jwk, "y"))
        else:
            return None
    except ValueError:
        return None
    return PublicKey(kid if isinstance(kid, str) else "", algorithm, check)


def _coordinate(jwk: dict[str, Any], name: str) -> bytes:
    text = jwk.get(name)
    raw = decode_base64url(text) if isinstance(text, str) else b""
    if len(raw) != _COORDINATE_SIZE:
        raise ValueError(f"{name} is not base64url of {_COORDINATE_SIZE} bytes")
    return raw


def _ed25519(x: bytes) -> Callable[[bytes, bytes], None]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(x).verify


def _es256(point: bytes) -> Callable[[bytes, bytes], None]:
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + point)

    def check(signature: bytes, message: bytes) -> None:
        # r and then s (RFC 9421 section 3.3.4); the library takes DER.
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        key.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))

    return check
