"""Writes JSON in which decimals keep their digits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def encode(value: Any) -> str:
    """Writes a value of JSON. A Decimal is a number with the same digits. ValueError or TypeError for what JSON does
    not have, such as NaN.
    """
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return int.__repr__(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is not JSON")
            return float.__repr__(value)
        case Decimal():
            if not value.is_finite():
                raise ValueError(f"{value} is not JSON")
            return str(value)
        case Mapping():
            return "{" + ",".join(f"{_name(name)}:{encode(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(encode, value)) + "]"
    raise TypeError(f"{type(value).__name__} is not JSON")


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError("the names in an object of JSON are strings")
    return json.dumps(name, ensure_ascii=False)
