"""Check an answer against its schema: not every engine constrains its output, and none does if the answer is
cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from jsonschema import ValidationError
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from forebay.engine.content import CUT
from forebay.engine.linear_schema import DIALECT, check_linear, linear
from forebay.errors import AnswerCut, InvalidAnswer, SettingError
from forebay.json_numbers import NumberRefused, read_json
from forebay.records import JSON

MAX_ANSWER_CHARS = 1 << 20
MAX_DEPTH = 64
MAX_QUOTE_CHARS = 200
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
Accept = Callable[[JSON], object]
"""Called with each answer; its return value is not used."""


class AnswerCheck:
    """Parses answers and checks them against one schema, compiled once. Picklable and thread-safe.

    Linear in the answer, also for patterns (RE2's) and `uniqueItems`; see `linear_schema`. `where` names the
    setting with the schema. `accept` is called with each valid answer and raises `InvalidAnswer` to reject
    it. Raises `SettingError` for a schema that is invalid, has patterns that RE2 does not support, or refers
    to anything outside itself: nothing is fetched.
    """

    def __init__(
        self, schema: Mapping[str, JSON], *, where: str = "output.schema", accept: Accept | None = None
    ) -> None:
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
            self._validator.is_valid(None)
        except RecursionError:
            raise SettingError(f"{where} refers to itself without end") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._schema, self._where, self._accept)

    def __call__(self, text: str, *, finish_reason: str | None = None) -> JSON:
        """Parse the JSON value in `text`, ignoring surrounding white space.

        Raises `InvalidAnswer` with the path and the problem, or `AnswerCut` if the text is incomplete and
        `finish_reason` is that of a cut completion.
        """
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
        if _deeper_than(value, MAX_DEPTH):
            raise InvalidAnswer(f"the answer is nested deeper than {MAX_DEPTH} levels: {_short(text)}")
        try:
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


def _deeper_than(value: JSON, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return False
    return True


def _short(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: MAX_QUOTE_CHARS * 4]).split())
    return line if len(line) <= MAX_QUOTE_CHARS else line[:MAX_QUOTE_CHARS] + "…"
