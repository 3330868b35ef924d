"""Calls the API of the daemon with an access token."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._errors import ApiError, ConnectionFailed
from ._http import Answer, Client, check_url, is_loopback

_RENEW_BEFORE = 30.0  # seconds before the end of a token
_DEFAULT_LIFE = 300  # seconds, if the answer has no expires_in
_MAX_TOKEN_ANSWER = 64 << 10


@dataclass(frozen=True)
class Credentials:
    """An OAuth client, its id and its client secret, which gets access tokens (RFC 6749, 4.4). `scope` selects some of its
    scopes, separated by spaces; None: all.
    """

    id: str
    secret: str = field(repr=False)
    scope: str | None = None


class TokenRefused(ApiError):
    """The token endpoint refused its request, so the one of the caller was not sent."""


class Api:
    """The API at a base address. Safe for concurrent use."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        credentials: Credentials | None,
        insecure: bool,
        context: ssl.SSLContext | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_url("url", url)
        if (token is None) == (credentials is None):
            raise ValueError("give either a token or credentials")
        if not insecure and url.lower().startswith("http:") and not is_loopback(url):
            raise ValueError("a token must not be sent over http to another host: use https, or insecure=True")
        self._url = url.rstrip("/")
        self._client = Client(context)
        self._now = now
        self._fixed = token
        self._tokens = _Tokens(self._client, self._url, credentials, now) if credentials else None

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float,
        max_size: int,
    ) -> Any:
        """Returns the JSON of the answer. Raises ApiError for another status than 2xx, ConnectionFailed if there is
        no complete answer, and ssl.SSLCertVerificationError. A token that is refused is replaced once.
        """
        url = self._url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        for renewed in (False, True):
            token = self._token()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            answer = self._client.send(method, url, headers, body, timeout, max_size)
            if answer.status != 401 or self._tokens is None or renewed:
                break
            self._tokens.discard(token)
        return read_json(answer, self._now())

    def _token(self) -> str:
        return self._tokens.get() if self._tokens else self._fixed or ""


class _Tokens:
    """Keeps one token until shortly before its end. One thread fetches, the others wait."""

    def __init__(self, client: Client, url: str, credentials: Credentials, now: Callable[[], float]) -> None:
        self._client = client
        self._url = url + "/oauth/token"
        self._credentials = credentials
        self._now = now
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def get(self) -> str:
        with self._lock:
            if not self._token or self._now() >= self._until:
                self._token, self._until = self._fetch()
            return self._token

    def discard(self, refused: str) -> None:
        with self._lock:
            if self._token == refused:  # else another thread has fetched a fresh one
                self._token = ""

    def _fetch(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"}
        if self._credentials.scope:
            form["scope"] = self._credentials.scope
        # Id and secret are form-encoded first (RFC 6749 section 2.3.1).
        pair = f"{urllib.parse.quote_plus(self._credentials.id)}:{urllib.parse.quote_plus(self._credentials.secret)}"
        headers = {
            "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        requested, body = self._now(), urllib.parse.urlencode(form).encode()
        answer = self._client.send("POST", self._url, headers, body, 10, _MAX_TOKEN_ANSWER)
        document = read_json(answer, self._now(), TokenRefused)
        token, life = (
            document.get(name) if isinstance(document, dict) else None for name in ("access_token", "expires_in")
        )
        if not isinstance(token, str) or not re.fullmatch("[!-~]+", token):
            raise TokenRefused(answer.status, "", "the token endpoint did not answer with a token")
        if type(life) not in (int, float) or not 0 < life < 1 << 31:
            life = _DEFAULT_LIFE
        return token, requested + life - min(_RENEW_BEFORE, life / 2)


def read_json(answer: Answer, now: float, refused: type[ApiError] = ApiError) -> Any:
    """Returns the JSON of an answer 2xx; ApiError, or `refused`, for any other."""
    if answer.status // 100 != 2:
        raise _error(answer, now, refused)
    if not answer.is_json():
        raise refused(answer.status, "", "the answer is not from a Spendhook daemon; check the address")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ConnectionFailed("the answer is not complete") from error


def _error(answer: Answer, now: float, kind: type[ApiError]) -> ApiError:
    """Reads a problem document (RFC 9457), or an error of RFC 6749."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    members = document if isinstance(document, dict) else {}
    code = members.get("code") or members.get("error") or ""
    detail = members.get("detail") or members.get("error_description") or members.get("title") or "no reason is given"
    errors = members.get("errors")
    fields = [item for item in errors if isinstance(item, dict)] if isinstance(errors, list) else []
    return kind(answer.status, str(code), str(detail), answer.retry_after(now), fields)
