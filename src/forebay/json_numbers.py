"""JSON without loss of digits.

orjson silently rounds integers above 64 bits and decimals with more digits than a double, so two ids that
differ in their last digits become one. It handles everything else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import orjson

MIN_INT, MAX_INT = -(2**63), 2**64 - 1
MAX_CHARS = 1000
"""The time to convert an integer is quadratic in its digits."""
MAX_INT_BITS = 3322
SHORT = 15
"""A number of at most this many characters, without an exponent, is exact as a double."""
MAX_DOUBLE_DIGITS = 767
MAX_EXPONENT_CHARS = 6
MAX_SHOWN_CHARS = 60
MAX_SHOWN_PARTS = 10
SUSPECT = re.compile(rb"[0-9](?:[0-9.]{15}|[eE][+-]?[0-9]{3})")
"""Matches numbers that orjson may round. Matches in texts only cost time."""
LONG = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{%d}" % MAX_CHARS)
"""Start of a number that may be too long. Each run of such characters is checked once."""
LITERAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
TOO_LARGE = "infinity"
TOO_DEEP = "depth limit exceeded"
TOO_WIDE = "64-bit"


class ExactFloat(float):
    """A number with more digits than a double: the nearest double, printed as it was written.

    >>> price = ExactFloat("0.1000000000000000055")
    >>> (str(price), price * 2)
    ('0.1000000000000000055', 0.2)
    """

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> ExactFloat:
        if len(text) > MAX_CHARS or LITERAL.fullmatch(text) is None:
            raise ValueError(f"not a JSON number: {text[:MAX_SHOWN_CHARS]!r}")
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return ExactFloat, (self.text,)


class NumberRefused(ValueError):
    """A number that JSON does not have, or that is too long. The message names its field."""

    def __init__(self, place: _Place, found: str, problem: str) -> None:
        path = _path(place)
        where = f"field {path!r}" if path else "the value"
        shown = found if len(found) <= MAX_SHOWN_CHARS else f"{found[:MAX_SHOWN_CHARS]}…"
        super().__init__(f"{where} is {shown}: {problem}")


_Place = tuple[Any, str] | None


def _path(place: _Place) -> str:
    parts: list[str] = []
    while place is not None and len(parts) < MAX_SHOWN_PARTS:
        place, part = place
        parts.append(part[:MAX_SHOWN_CHARS])
    return "".join(reversed(parts)).removeprefix(".")


class _TooLong(str): ...


def read_json(data: bytes) -> Any:
    """Parse JSON with exact integers; decimals with more digits than a double become `ExactFloat`.

    Raises `NumberRefused` for a number of more than 1,000 characters, and `orjson.JSONDecodeError` for
    invalid JSON or too deep nesting.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if TOO_LARGE not in str(error):
            raise
        try:
            return _read_exactly(data)
        except NumberRefused:
            raise
        except ValueError as exact:
            raise (exact if TOO_DEEP in str(exact) else error) from None
    return value if SUSPECT.search(data) is None else _read_exactly(data)


def dump_json(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    def other(item: Any) -> Any:
        if isinstance(item, ExactFloat):
            return orjson.Fragment(item.text)
        if default is None:
            raise TypeError
        return default(item)

    try:
        return orjson.dumps(value, other, option)
    except TypeError as error:
        if TOO_WIDE not in str(error):
            raise
    return orjson.dumps(_with_fragments(value), lambda item: _with_fragments(other(item)), option)


def deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested in more levels. Without recursion, which has a limit."""
    level = [value]
    for _ in range(levels + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def check_numbers(value: Any) -> None:
    """Raise `NumberRefused` if a number in `value` is not finite or too long."""

    def refuse(place: _Place, item: Any) -> None:
        if isinstance(item, float):
            if not math.isfinite(item) and not isinstance(item, ExactFloat):
                raise NumberRefused(place, str(item), "JSON has no such number; use null")
        elif isinstance(item, int) and item.bit_length() > MAX_INT_BITS:
            # Python refuses to print integers of thousands of digits.
            raise NumberRefused(place, f"an integer of {item.bit_length()} bits", _too_long())

    _each(value, refuse)


def _read_exactly(data: bytes) -> Any:
    try:
        value = json.loads(data, parse_int=_int, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        # Python's limit is below orjson's, and depends on the caller's stack.
        raise orjson.JSONDecodeError(TOO_DEEP, "", 0) from None
    if LONG.search(data) is not None:
        _each(value, _refuse_long)
    return value


def _refuse_long(place: _Place, item: Any) -> None:
    if type(item) is _TooLong:
        raise NumberRefused(place, item, _too_long())


def _too_long() -> str:
    return f"the limit for a number is {MAX_CHARS} characters; write it as text"


def _each(value: Any, look: Callable[[_Place, Any], None]) -> None:
    stack: list[tuple[_Place, Any]] = [(None, value)]
    seen = set()  # A Python object may contain itself.
    while stack:
        place, item = stack.pop()
        if isinstance(item, dict | list | tuple):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, dict):
            stack.extend(((place, f".{name}"), inner) for name, inner in reversed(item.items()))
        elif isinstance(item, list | tuple):
            stack.extend(((place, f"[{at}]"), inner) for at, inner in reversed(list(enumerate(item))))
        else:
            look(place, item)


def _with_fragments(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_fragments(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_fragments(inner) for inner in value]
    if isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
        return orjson.Fragment(str(int(value)))
    return value


def _int(literal: str) -> int | _TooLong:
    return int(literal) if len(literal) <= MAX_CHARS else _TooLong(literal)


def _float(literal: str) -> float | _TooLong:
    if len(literal) > MAX_CHARS:
        return _TooLong(literal)
    value = float(literal)
    if len(literal) <= SHORT and "e" not in literal and "E" not in literal:
        return value
    return value if _keeps(value, literal) else ExactFloat(literal)


def _constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _keeps(value: float, literal: str) -> bool:
    found = _significant(literal)
    if found is None or not math.isfinite(value) or len(found[1]) > MAX_DOUBLE_DIGITS:
        return False
    shortest = _significant(repr(value))
    return found == shortest or found == _significant(f"{value:.{max(len(found[1]), 1) - 1}e}")


def _significant(literal: str) -> tuple[str, str, int] | None:
    match = LITERAL.fullmatch(literal)
    assert match is not None
    sign, whole, fraction, exponent = match.groups()
    written = whole + (fraction or "")
    digits = written.lstrip("0")
    if not digits:
        return sign, "", 0
    if len(exponent or "") > MAX_EXPONENT_CHARS:
        return None
    first = len(whole) - 1 - (len(written) - len(digits))
    return sign, digits.rstrip("0"), first + int(exponent or 0)
