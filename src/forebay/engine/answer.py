"""Check an answer against its schema: not every engine constrains its output, and none does if it is cut.

An answer is untrusted text, so the parts of jsonschema that take more than linear time are replaced or
rejected: regular expressions that backtrack (RE2 does not), `uniqueItems` with unsortable items, and
unevaluated items and properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from forebay.errors import AnswerCut, InvalidAnswer, SettingError
from forebay.json_numbers import NumberRefused, deeper_than, read_json
from forebay.records import JSON

if TYPE_CHECKING:
    # Few pipelines have a schema, and each run would import jsonschema three times.
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

MAX_PATTERN_CHARS = 100
DIALECT = "$schema"
VALUES = ("const", "default", "enum", "examples")
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose values map names to schemas; the names are not keywords."""
NOT_LINEAR = {
    "unevaluatedItems": "items",
    "unevaluatedProperties": "additionalProperties",
    "$dynamicRef": "$ref",
    "$recursiveRef": "$ref",
}
ESCAPE = re.compile(r"\\(?:u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|.)", re.DOTALL)
"""A backslash escape; a group if it is a character's number. RE2 rejects surrogates."""


def search(pattern: str, text: str) -> bool:
    """Whether `pattern`, in RE2's syntax plus `\\uXXXX`, occurs in `text`. Raises `ValueError` if RE2 does
    not support it, such as look-around."""
    from pyarrow import compute  # takes a third of a second, and few schemas have patterns

    known = ESCAPE.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], pattern)
    return bool(compute.match_substring_regex(text, pattern=known).as_py())


def check_linear(schema: Mapping[str, Any], path: str) -> None:
    """Raise `SettingError` for patterns and keywords that cannot be checked in linear time. `path` names the
    setting."""
    for at, part in _subschemas(schema, path):
        if part is not schema and isinstance(part.get(DIALECT), str):
            # It would be checked with that dialect's validator.
            raise SettingError(f"{at} has a {DIALECT} of its own; only the whole schema may name one")
        if isinstance(pattern := part.get("pattern"), str):
            _check(pattern, f"{at}.pattern")
        for pattern in part.get("patternProperties") or ():
            _check(pattern, f"{at}.patternProperties")
        for name, instead in NOT_LINEAR.items():
            if name in part:
                raise SettingError(
                    f"{at} has {name}, which is not checked in time linear in the answer; write {instead}"
                )


def _subschemas(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
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
        reason = str(error).removeprefix("Invalid regular expression: ")[:MAX_PATTERN_CHARS]
        without = (
            "counts above 1000" if "repetition size" in reason else "look-around and references to groups"
        )
        raise SettingError(
            f"{path} is {pattern[:MAX_PATTERN_CHARS]!r}, which RE2 does not support; write it without "
            f"{without}: {reason}"
        ) from None


def linear(dialect: type[Validator]) -> type[Validator]:
    """A validator like `dialect` that searches with `search`, compares unique items by their hashes, and
    follows a reference once for each value."""
    from jsonschema.validators import extend

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "$ref": _once(dialect.VALIDATORS["$ref"]),
    }
    changed = {name: keyword for name, keyword in own.items() if name in dialect.VALIDATORS}
    made: type[Validator] = extend(dialect, changed)  # type: ignore[no-untyped-call]
    return made


Errors: TypeAlias = "Iterator[ValidationError]"


Found: TypeAlias = "tuple[str, tuple[str | int, ...]] | None"
FOLLOWED: ContextVar[dict[tuple[int, int], Found]] = ContextVar("followed")
"""What one check found at references (a message and a path; None if valid), by the ids of schemas and
values.
"""


@contextmanager
def _one_check() -> Iterator[None]:
    token = FOLLOWED.set({})
    try:
        yield
    finally:
        FOLLOWED.reset(token)


def _once(keyword: Callable[..., Errors]) -> Callable[..., Errors]:
    """Without it, two alternatives that refer to the schema itself would check an answer of 25 levels 2^25
    times."""

    def follow(validator: Any, reference: str, instance: Any, schema: Mapping[str, Any]) -> Errors:
        from jsonschema import ValidationError

        followed, at = FOLLOWED.get(), (id(schema), id(instance))
        if at not in followed:
            error: ValidationError | None = next(iter(keyword(validator, reference, instance, schema)), None)
            followed[at] = None if error is None else (_short(error.message), tuple(error.relative_path))
            if error is not None:
                yield error
        elif (found := followed[at]) is not None:
            yield ValidationError(found[0], path=found[1])

    return follow


def _pattern(validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]) -> Errors:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, parts: Any, instance: Any, schema: Mapping[str, Any]) -> Errors:
    if validator.is_type(instance, "object"):
        for pattern, part in parts.items():
            for name, value in instance.items():
                if search(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Mapping[str, Any]) -> Errors:
    from jsonschema import ValidationError

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
    from jsonschema import ValidationError

    if wanted and validator.is_type(instance, "array") and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("it has non-unique elements")


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return "object", frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return ("boolean", value) if isinstance(value, bool) else value


CUT = "length"
MAX_ANSWER_CHARS = 1 << 20
MAX_DEPTH = 64
MAX_QUOTE_CHARS = 200
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
Accept = Callable[[JSON], object]


class AnswerCheck:
    """Parses answers and checks them against one schema, compiled once. Picklable and thread-safe.

    `where` names the setting with the schema. `accept` is called with each valid answer and raises
    `InvalidAnswer` to reject it. Raises `SettingError` for a schema that is invalid, cannot be checked in
    linear time, or refers to anything outside itself.
    """

    def __init__(
        self, schema: Mapping[str, JSON], *, where: str = "output.schema", accept: Accept | None = None
    ) -> None:
        from jsonschema.exceptions import SchemaError
        from referencing import Registry

        self._schema = _plain(schema, where, 0)
        self._where = where
        self._accept = accept
        cls = _dialect(self._schema, where)
        try:
            cls.check_schema(self._schema)
        except SchemaError as error:
            at = error.json_path.removeprefix("$")
            raise SettingError(f"{where}{at} is not a JSON schema: {_short(error.message)}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise SettingError(f"{where} is not a JSON schema: {_short(str(error))}") from None
        _check_references(self._schema, where)
        # jsonschema would follow a reference to a part with its own dialect with that dialect's patterns.
        checked = {key: value for key, value in self._schema.items() if key != DIALECT}
        check_linear(checked, where)
        self._validator: Any = linear(cls)(checked, registry=Registry())
        try:
            with _one_check():
                self._validator.is_valid(None)
        except RecursionError:
            raise SettingError(f"{where} refers to itself without end") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._schema, self._where, self._accept)

    def __call__(self, text: str, *, finish_reason: str | None = None) -> JSON:
        """Parse the JSON value in `text`.

        Raises `InvalidAnswer` with the path and the problem, or `AnswerCut` if the text is incomplete and
        `finish_reason` is that of a cut completion.
        """
        from referencing.exceptions import Unresolvable

        if len(text) > MAX_ANSWER_CHARS:
            raise InvalidAnswer(f"the answer has {len(text)} characters, more than {MAX_ANSWER_CHARS}")
        try:
            value = read_json(text.strip().encode("utf-8", "surrogatepass"))
        except NumberRefused as error:
            raise InvalidAnswer(f"the answer: {_short(str(error))}") from None
        except orjson.JSONDecodeError as error:
            if finish_reason == CUT:
                raise _cut(text) from None
            raise InvalidAnswer(f"the answer is not JSON ({error}): {_short(text)}") from None
        if finish_reason == CUT and isinstance(value, int | float) and not isinstance(value, bool):
            # A truncated number is still valid JSON; any other truncated value is not.
            raise _cut(text)
        if deeper_than(value, MAX_DEPTH):
            raise InvalidAnswer(f"the answer is nested deeper than {MAX_DEPTH} levels: {_short(text)}")
        try:
            with _one_check():
                broken: ValidationError | None = next(self._validator.iter_errors(value), None)
        except (RecursionError, Unresolvable, ValueError) as error:
            # Such as a pattern that only a reference into a value leads to.
            raise InvalidAnswer(f"the answer cannot be checked: {type(error).__name__}") from None
        if broken is not None:
            raise InvalidAnswer(
                f"the answer breaks the schema at {_short(broken.json_path)}: {_short(broken.message)}"
            )
        if self._accept is not None:
            self._accept(value)
        return value


def _cut(text: str) -> AnswerCut:
    return AnswerCut(
        f"the answer was cut at max_tokens before its JSON was complete; raise sampling.max_tokens: "
        f"{_short(text)}"
    )


def _restore(schema: Mapping[str, JSON], where: str, accept: Accept | None) -> AnswerCheck:
    return AnswerCheck(schema, where=where, accept=accept)


def _dialect(schema: Mapping[str, JSON], where: str) -> type[Validator]:
    from jsonschema.validators import Draft202012Validator, validator_for

    if DIALECT not in schema:
        return Draft202012Validator
    name = schema[DIALECT]
    # With the default None, which the stubs do not allow, an unknown draft can be recognised.
    none: Any = None
    known = validator_for({DIALECT: name}, default=none) if isinstance(name, str) else None
    if known is None:
        raise SettingError(
            f"{where}.$schema is {_short(str(name))!r}; expected the URL of a JSON schema draft"
        )
    return known


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise SettingError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {key: _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where, depth + 1) for item in value]
    return value


def _check_references(schema: Any, where: str) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for path, reference in _references(schema, where):
        if not reference.startswith("#"):
            raise SettingError(
                f"{path} refers to {_short(reference)!r}; only references within the schema (#/…) work"
            )
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise SettingError(
                f"{path} refers to {_short(reference)!r}, which is not in the schema"
            ) from None


def _references(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in REFERENCES and isinstance(item, str):
                yield f"{path}.{key}", item
            else:
                yield from _references(item, f"{path}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _references(item, f"{path}[{i}]")


def _short(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: MAX_QUOTE_CHARS * 4]).split())
    return line if len(line) <= MAX_QUOTE_CHARS else line[:MAX_QUOTE_CHARS] + "…"
