"""Base64, without what the decoders of the standard library forgive."""

import base64
import re

_STANDARD = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_URL = re.compile(r"[A-Za-z0-9_-]*")


def decode_base64(text: str) -> bytes:
    """Decodes base64 with padding (RFC 4648 section 4). ValueError if it is malformed."""
    if not _STANDARD.fullmatch(text):
        raise ValueError("not base64")
    return base64.b64decode(text)


def decode_base64url(text: str) -> bytes:
    """Decodes base64url without padding (RFC 4648 section 5), in its only form. ValueError if it is malformed."""
    if not _URL.fullmatch(text) or len(text) % 4 == 1:
        raise ValueError("not base64url")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:  # stray bits at the end
        raise ValueError("not base64url")
    return raw
