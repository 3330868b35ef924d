"""HTTP message signatures (RFC 9421) of webhooks."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import TypeVar

from ._errors import InvalidMessage
from ._fields import Dictionary, InnerList, Item, parse_dictionary, serialize
from ._keys import PublicKey
from ._message import Request

CLOCK_DIFFERENCE = 60.0
"""How far the clocks of the daemon and the receiver may differ, in seconds."""

_T = TypeVar("_T")
_TAG = "webhook"
_REQUIRED = ("@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp")
_OPTIONAL = ("webhook-sequence", "webhook-previous")
_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t -~]*")
_TIMESTAMP = re.compile(r"[0-9]{1,15}")
_TARGET = re.compile(r"(https?)://([^/?#]+)([^#]*)", re.IGNORECASE)
_VISIBLE = re.compile(r"[!-~]+")


class UnknownKey(InvalidMessage):
    """No key has the keyid. The sender may have a new key."""


def verify(request: Request, origin: str, keys: Sequence[PublicKey], now: float) -> None:
    """Checks the signature with the tag "webhook" (section 3.2), and the body against Content-Digest (RFC 9530).

    There must be one such signature. It covers at least `_REQUIRED`, and those of `_OPTIONAL` that the request has; no
    component is covered twice or has parameters. A message is accepted from CLOCK_DIFFERENCE before `created` to
    CLOCK_DIFFERENCE after `expires`, and webhook-timestamp must be as close to `created`.
    """
    label, covered = _find(request)
    signature = _bytes(_dictionary(request, "signature"), label, "signature")
    created, expires = (_parameter(covered, name, int) for name in ("created", "expires"))
    keyid, alg = (_parameter(covered, name, str) for name in ("keyid", "alg"))
    key = next((key for key in keys if key.kid == keyid and keyid), None)
    if key is None:
        raise UnknownKey("the key of the message signature is not known")
    if key.algorithm != alg:  # section 3.2, step 6
        raise InvalidMessage("alg is not the algorithm of the key")
    base = _signature_base(request, origin, covered)
    _check_time(request, created, expires, now)
    if not key.verifies(signature, base):
        raise InvalidMessage("the message signature does not match the message")
    _check_digest(request)


def _find(request: Request) -> tuple[str, InnerList]:
    """Returns the signature with the tag: its label, and what it covers."""
    found = [
        (label, member)
        for label, member in _dictionary(request, "signature-input").items()
        if isinstance(member, InnerList) and member.params.get("tag") == _TAG
    ]
    if len(found) != 1:
        raise InvalidMessage(f"{len(found)} message signatures have the tag {_TAG}")
    return found[0]


def _dictionary(request: Request, header: str) -> Dictionary:
    try:
        return parse_dictionary(request.header(header) or "")
    except ValueError as error:
        raise InvalidMessage(f"{header} is malformed: {error}") from None


def _bytes(members: Dictionary, name: str, header: str) -> bytes:
    member = members.get(name)
    if not isinstance(member, Item) or not isinstance(member.value, bytes):
        raise InvalidMessage(f"{name} of {header} is not a byte sequence")
    return member.value


def _parameter(covered: InnerList, name: str, kind: type[_T]) -> _T:
    value = covered.params.get(name)
    if type(value) is not kind:  # a bool is an int, too
        raise InvalidMessage(f"{name} of the message signature is missing or malformed")
    return value


def _signature_base(request: Request, origin: str, covered: InnerList) -> bytes:
    """Returns what was signed (section 2.5), if it is acceptable."""
    lines: dict[str, str] = {}
    for item in covered.items:
        name = item.value
        if not isinstance(name, str):
            raise InvalidMessage("a component is not a string")
        if item.params:
            raise InvalidMessage(f"{name} has parameters")
        if name in lines:
            raise InvalidMessage(f"{name} is covered twice")
        lines[name] = f'"{name}": {_component(request, origin, name)}\n'
    for name in (*_REQUIRED, *(name for name in _OPTIONAL if request.header(name) is not None)):
        if name not in lines:
            raise InvalidMessage(f"{name} is not covered")
    return f'{"".join(lines.values())}"@signature-params": {serialize(covered)}'.encode()


def _component(request: Request, origin: str, name: str) -> str:
    if name == "@method":
        return _value(name, request.method)
    if name == "@target-uri":
        if not request.url.startswith("/"):  # else it could continue the host of the origin
            raise InvalidMessage("the URL does not begin with a slash")
        return _target_uri(origin + request.url)
    if not _FIELD_NAME.fullmatch(name):
        raise InvalidMessage(f"the component {name} is not known")
    value = request.header(name)
    if value is None:
        raise InvalidMessage(f"{name} is missing")
    return _value(name, value)


def _value(name: str, value: str) -> str:
    if not _VALUE.fullmatch(value):  # a line break could counterfeit the next component
        raise InvalidMessage(f"{name} is not ASCII without control characters")
    return value.strip(" \t")


def _target_uri(uri: str) -> str:
    """Returns @target-uri (section 2.2.2): scheme and host in lower case, without the default port. Path and query
    stay as they are.
    """
    found = _TARGET.match(uri)
    if not found:
        raise InvalidMessage("the URL is not acceptable")
    scheme, host, target = found[1].lower(), found[2].lower(), found[3]
    host = host.removesuffix(":").removesuffix(":443" if scheme == "https" else ":80")
    target = target if target.startswith("/") else "/" + target
    uri = f"{scheme}://{host}{target}"
    if not host or not _VISIBLE.fullmatch(uri):
        raise InvalidMessage("the URL is not acceptable")
    return uri


def _check_time(request: Request, created: int, expires: int, now: float) -> None:
    if created - now > CLOCK_DIFFERENCE or now - expires > CLOCK_DIFFERENCE:
        raise InvalidMessage("the message signature is of another time")
    timestamp = (request.header("webhook-timestamp") or "").strip(" \t")
    if not _TIMESTAMP.fullmatch(timestamp) or abs(int(timestamp) - created) > CLOCK_DIFFERENCE:
        raise InvalidMessage("webhook-timestamp is not the time of the message signature")


def _check_digest(request: Request) -> None:
    """Checks the sha-256 of Content-Digest, and the sha-512 if it is there. Others are ignored."""
    digests = _dictionary(request, "content-digest")
    expected = {"sha-256": hashlib.sha256(request.body)}
    if "sha-512" in digests:
        expected["sha-512"] = hashlib.sha512(request.body)
    for name, digest in expected.items():
        if not hmac.compare_digest(_bytes(digests, name, "content-digest"), digest.digest()):
            raise InvalidMessage("content-digest is not that of the body")
