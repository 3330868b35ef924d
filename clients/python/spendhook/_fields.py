"""Structured fields (RFC 9651): dictionaries are parsed, and inner lists serialised.

Anything that the grammar does not have is a ValueError. The input is one string: several lines of a field are joined
with a comma before.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from ._encoding import decode_base64


@dataclass(frozen=True)
class Token:
    """A token, which is not a string."""

    text: str


@dataclass(frozen=True)
class Date:
    """A date, in unix seconds."""

    seconds: int


@dataclass(frozen=True)
class DisplayString:
    """A string that may have any characters."""

    text: str


Bare = bool | int | Decimal | str | bytes | Token | Date | DisplayString
Params = dict[str, Bare]


@dataclass(frozen=True)
class Item:
    """A value with its parameters."""

    value: Bare
    params: Params


@dataclass(frozen=True)
class InnerList:
    """Items in parentheses, with parameters of the list."""

    items: list[Item]
    params: Params


Dictionary = dict[str, Item | InnerList]

_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_NUMBER = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")
_BYTES = re.compile(r":([A-Za-z0-9+/=]*):")
_BOOLEAN = re.compile(r"\?([01])")
_DISPLAY = re.compile(r'%"((?:[ !#$&-~]|%[0-9a-f]{2})*)"')
_SPACES = re.compile(r" *")
_BLANKS = re.compile(r"[ \t]*")


def parse_dictionary(text: str) -> Dictionary:
    """Parses a dictionary (section 4.2.2). Of a key that is given twice the last value counts."""
    return _Parser(text).dictionary()


class _Parser:
    """A place in a text. Each method reads what it is named after, or raises ValueError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def dictionary(self) -> Dictionary:
        members: Dictionary = {}
        self.match(_SPACES)
        while not self.ended():
            key = self.match(_KEY)[0]
            members[key] = self.member() if self.skip("=") else Item(True, self.params())
            self.match(_BLANKS)
            if self.ended():
                break
            self.expect(",")
            self.match(_BLANKS)
            if self.ended():
                raise ValueError("a comma at the end")
        return members

    def member(self) -> Item | InnerList:
        return self.inner_list() if self.skip("(") else self.item()

    def inner_list(self) -> InnerList:
        items: list[Item] = []
        while True:
            self.match(_SPACES)
            if self.skip(")"):
                return InnerList(items, self.params())
            items.append(self.item())
            if not self.ahead(" ") and not self.ahead(")"):
                raise ValueError("no space between the items of a list")

    def item(self) -> Item:
        return Item(self.bare(), self.params())

    def params(self) -> Params:
        params: Params = {}
        while self.skip(";"):
            self.match(_SPACES)
            key = self.match(_KEY)[0]
            params[key] = self.bare() if self.skip("=") else True
        return params

    def bare(self) -> Bare:
        first = self.text[self.at : self.at + 1]
        for starts, read in _BARE:
            if first and first in starts:
                return read(self)
        return Token(self.match(_TOKEN)[0])

    def number(self) -> int | Decimal:
        found = self.match(_NUMBER)
        if found[2] is None:
            if self.ahead(".") or len(found[1]) > 15:
                raise ValueError("an integer that is malformed or too long")
            return int(found[0])
        if len(found[1]) > 12 or len(found[2]) > 3:
            raise ValueError("a decimal that is too long")
        return Decimal(found[0])

    def string(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.match(_STRING)[1])

    def byte_sequence(self) -> bytes:
        return decode_base64(self.match(_BYTES)[1])

    def boolean(self) -> bool:
        return self.match(_BOOLEAN)[1] == "1"

    def date(self) -> Date:
        self.expect("@")
        seconds = self.number()
        if not isinstance(seconds, int):
            raise ValueError("a date that is not an integer")
        return Date(seconds)

    def display_string(self) -> DisplayString:
        text = self.match(_DISPLAY)[1]
        raw = re.sub(rb"%(..)", lambda found: bytes.fromhex(found[1].decode()), text.encode())
        return DisplayString(raw.decode())

    def ended(self) -> bool:
        return self.at == len(self.text)

    def ahead(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def skip(self, text: str) -> bool:
        if not self.ahead(text):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str) -> None:
        if not self.skip(text):
            raise ValueError(f"no {text} at character {self.at}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if not found:
            raise ValueError(f"malformed at character {self.at}")
        self.at = found.end()
        return found


_BARE: list[tuple[str, Callable[[_Parser], Bare]]] = [
    ("-0123456789", _Parser.number),
    ('"', _Parser.string),
    (":", _Parser.byte_sequence),
    ("?", _Parser.boolean),
    ("@", _Parser.date),
    ("%", _Parser.display_string),
]


def serialize(inner: InnerList) -> str:
    """Serialises an inner list with its parameters (section 4.1.1.1)."""
    items = " ".join(_bare(item.value) + _params(item.params) for item in inner.items)
    return f"({items}){_params(inner.params)}"


def _params(params: Params) -> str:
    return "".join(f";{key}" if value is True else f";{key}={_bare(value)}" for key, value in params.items())


def _bare(value: Bare) -> str:
    match value:
        case bool():
            return "?1" if value else "?0"
        case int():
            return str(value)
        case Decimal():
            text = f"{value:.3f}".rstrip("0")
            return text + "0" if text.endswith(".") else text
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case bytes():
            return f":{base64.b64encode(value).decode()}:"
        case Token():
            return value.text
        case Date():
            return f"@{value.seconds}"
    return (
        '%"'
        + "".join(chr(c) if 0x20 <= c < 0x7F and c not in b'%"' else f"%{c:02x}" for c in value.text.encode())
        + '"'
    )
