"""HTTP without redirects, with bounds on time and size."""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from ._errors import ConnectionFailed
from ._version import __version__

_CHUNK = 64 << 10


@dataclass(frozen=True)
class Answer:
    """An answer with any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def is_json(self) -> bool:
        """Whether the answer says that it is JSON."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"

    def retry_after(self, now: float) -> float | None:
        """Returns how many seconds Retry-After asks to wait, from seconds or a date; None if it is missing."""
        text = self.headers.get("Retry-After", "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
        except (TypeError, ValueError, OverflowError):
            return None


class Client:
    """Sends requests, each over its own connection. Safe for concurrent use."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._direct = _opener(context, proxies={})
        self._opener = _opener(context, proxies=None)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float, max_size: int
    ) -> Answer:
        """Returns the answer; ConnectionFailed if there is none within the time or size, ssl.SSLCertVerificationError
        if the certificate is not trusted. Redirects are answers.
        """
        agent = {"User-Agent": f"spendhook-python/{__version__}"}
        request = urllib.request.Request(url, body, {**agent, **headers}, method=method)
        opener = self._direct if is_loopback(url) else self._opener
        deadline = time.monotonic() + timeout
        try:
            with opener.open(request, timeout=timeout) as response:
                return Answer(response.status, response.headers, _read(response, deadline, max_size))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise reason from None
            raise ConnectionFailed(f"{method} {url.partition('?')[0]}: {reason or type(error).__name__}") from error


def _opener(context: ssl.SSLContext | None, proxies: dict[str, str] | None) -> urllib.request.OpenerDirector:
    # Built by hand: build_opener follows redirects and makes errors of statuses.
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler(context=context))
    return opener


def _read(response: http.client.HTTPResponse, deadline: float, max_size: int) -> bytes:
    length = response.length  # None: the body ends with its last chunk, or with the connection
    body = bytearray()
    while length is None or len(body) < length:
        chunk = response.read1(_CHUNK)  # one read of the socket, whose time-out is one for each read
        if not chunk:
            break
        body += chunk
        if len(body) > max_size:
            raise ConnectionFailed(f"the answer has more than {max_size} bytes")
        if time.monotonic() > deadline:
            raise ConnectionFailed("the answer takes too long")
    if length is not None and len(body) < length:
        raise http.client.IncompleteRead(bytes(body), length - len(body))
    return bytes(body)


def is_loopback(url: str) -> bool:
    """Whether the host of a URL is this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(name: str, url: str) -> None:
    """Raises ValueError unless the URL is an absolute one of http or https."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise ValueError(f"{name} is not an absolute http or https URL")
