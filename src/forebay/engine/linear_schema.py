"""Replace or reject the parts of jsonschema that take more than time linear in the answer.

An answer is untrusted text. In Python's regular expressions, which backtrack, forty characters can keep a
pattern like `^(x+)+$` busy for hours; not in RE2. For `uniqueItems`, jsonschema compares unsortable items
pairwise, and it searches for unevaluated items and properties in a list of all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from forebay.errors import SettingError

MAX_QUOTE_CHARS = 100
DIALECT = "$schema"
VALUES = ("const", "default", "enum", "examples")
"""Keywords whose values are not schemas."""
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose values map names to schemas; the names are not keywords."""
UNEVALUATED = {"unevaluatedItems": "items", "unevaluatedProperties": "additionalProperties"}
ESCAPE = re.compile(r"\\(?:u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|.)", re.DOTALL)
"""A backslash escape; a group if it is a character's number. Surrogates, which RE2 does not support, are left
for it to reject."""


def search(pattern: str, text: str) -> bool:
    """Whether `pattern`, in RE2's syntax plus `\\uXXXX`, occurs in `text`. Raises `ValueError` if RE2 does
    not support it: look-around and back-references cannot be searched for in linear time."""
    from pyarrow import compute  # takes a third of a second, and few schemas have patterns

    known = ESCAPE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern)
    return bool(compute.match_substring_regex(text, pattern=known).as_py())


def check_linear(schema: Mapping[str, Any], path: str) -> None:
    """Raise `SettingError` for patterns that RE2 does not support, and for keywords that jsonschema does not
    check in linear time. `path` names the setting with the schema."""
    for at, part in _subschemas(schema, path):
        if part is not schema and isinstance(part.get(DIALECT), str):
            # It would be checked with that dialect's validator.
            raise SettingError(f"{at} has a {DIALECT} of its own; only the whole schema may name one")
        if isinstance(pattern := part.get("pattern"), str):
            _check(pattern, f"{at}.pattern")
        for pattern in part.get("patternProperties") or ():
            _check(pattern, f"{at}.patternProperties")
        for name, instead in UNEVALUATED.items():
            if name in part:
                raise SettingError(
                    f"{at} has {name}, which is not checked in time linear in the answer; write {instead}"
                )


def _subschemas(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all parts of it, with their paths; also values of unknown keywords, as a reference can
    lead there."""
    if isinstance(schema, list):
        for i, item in enumerate(schema):
            yield from _subschemas(item, f"{path}[{i}]")
    elif isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                for name, part in value.items():
                    yield from _subschemas(part, f"{path}.{key}.{name}")
            elif key not in VALUES:
                yield from _subschemas(value, f"{path}.{key}")


def _check(pattern: str, path: str) -> None:
    try:
        search(pattern, "")
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix("Invalid regular expression: ")[:MAX_QUOTE_CHARS]
        without = (
            "counts above 1000" if "repetition size" in reason else "look-around and references to groups"
        )
        raise SettingError(
            f"{path} is {pattern[:MAX_QUOTE_CHARS]!r}, which RE2 does not support; write it without "
            f"{without}: {reason}"
        ) from None


def linear(dialect: type[Validator]) -> type[Validator]:
    """A validator like `dialect` that searches for patterns with `search`, and compares unique items by their
    hashes."""
    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    changed = {name: keyword for name, keyword in own.items() if name in dialect.VALIDATORS}
    made: type[Validator] = extend(dialect, changed)  # type: ignore[no-untyped-call]
    return made


Errors = Iterator[ValidationError]


def _pattern(validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]) -> Errors:
    if validator.is_type(instance, "string") and not search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, parts: Any, instance: Any, schema: Mapping[str, Any]) -> Errors:
    if validator.is_type(instance, "object"):
        for pattern, part in parts.items():
            for name, value in instance.items():
                if search(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Mapping[str, Any]) -> Errors:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    names = [name for name in instance if name not in known and not any(search(p, name) for p in patterns)]
    if validator.is_type(rest, "object"):
        for name in names:
            yield from validator.descend(instance[name], rest, path=name)
    elif not rest and names:
        listed = ", ".join(map(repr, names))
        yield ValidationError(f"Additional properties are not allowed ({listed})")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]) -> Errors:
    if wanted and validator.is_type(instance, "array") and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("it has non-unique elements")


def _hashable(value: Any) -> Any:
    """Equal for values that are equal in JSON: 1 equals 1.0 there, but not true."""
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean", value) if isinstance(value, bool) else value
