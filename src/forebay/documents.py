"""Read a settings file (a small YAML) into a checked model, or raise one `SettingError` with all mistakes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from forebay.errors import SettingError
from forebay.fields import OneOf
from forebay.files import read_text
from forebay.yaml_document import MAX_BYTES, parse_yaml

MAX_PROBLEMS = 20
HIDDEN = frozenset(("api_key", "headers", "url"))
MAX_WORD = 60
MAX_LEVELS = 8

Where = tuple[str | int, ...]
Spec = TypeVar("Spec", bound=BaseModel)


def read_document(path: str | Path, what: str) -> tuple[Any, dict[Where, int]]:
    """The value of a YAML file and the line of each key; blocks. Raises `SettingError`, which names
    `what`.
    """
    file = Path(path)
    return parse_yaml(read_text(file, MAX_BYTES, f"{what} file {file}"), str(file), what)


def check_document(
    spec: type[Spec],
    data: Any,
    *,
    what: str,
    base: Path | None = None,
    name: str,
    lines: Mapping[Where, int] | None = None,
    given: Collection[Where] = (),
) -> Spec:
    """Check the value of a `what` file against `spec`. Relative paths are resolved against `base`.

    Messages attribute values at the paths `given` to `--set`. Raises `SettingError` with one line per
    mistake: `name:line: key.path: what was expected, what was found`.
    """
    if not isinstance(data, dict):
        raise SettingError(f"{name}: expected a mapping with the keys of a {what}, found {describe(data)}")
    try:
        return spec.model_validate(data, context={"base": base})
    except ValidationError as error:
        problems = _problems(spec, error, data)
    located = [(_place(at, text, name, lines or {}, given), where, text) for at, where, text in problems]
    located.sort(key=lambda problem: (problem[0].line is None, problem[0].line or 0))
    shown = [f"{place.text}: {_dotted(where)}{text}" for place, where, text in located[:MAX_PROBLEMS]]
    if len(located) > MAX_PROBLEMS:
        shown.append(f"{name}: and {len(located) - MAX_PROBLEMS} more")
    raise SettingError("\n".join(shown)) from None


def _problems(spec: type[BaseModel], error: ValidationError, data: Any) -> list[tuple[Where, Where, str]]:
    problems: list[tuple[Where, Where, str]] = []
    for item in error.errors(include_url=False):
        if item["loc"] and item["loc"][0] not in data and item["type"] != "missing":
            continue  # in a default derived from a setting with the same mistake
        where, value, model = _walk(spec, item["loc"], data, missing=item["type"] == "missing")
        if item["type"] == "together":
            together = [(_parsed(key), text) for key, text in item["ctx"]["problems"]]
            problems += [(path, path, text) for path, text in together]
        elif item["type"] == "extra_forbidden":
            problems.append((where, where[:-1], _unknown_key(where, model, known_paths(spec, data))))
        else:
            at = (*where, "type") if item["type"] == "union_tag_invalid" else where
            problems.append((at, where, _text(item, where, value)))
    return problems


def _parsed(key: str) -> Where:
    steps = re.findall(r"\[(\d+)\]|([^.\[]+)", key)
    return tuple(name or int(at) for at, name in steps)


def _walk(
    spec: type[BaseModel], loc: Where, data: Any, *, missing: bool
) -> tuple[Where, Any, type[BaseModel]]:
    """The path in the file for pydantic's `loc` (with the branch of a union), the value there, and the model
    around it.
    """
    where: list[str | int] = []
    model = spec
    around, value = model, data
    for i, step in enumerate(loc):
        if not _has(value, step) and not (missing and i == len(loc) - 1):
            continue
        around = model
        where.append(step)
        model = _model_below(model, step, value)
        value = value[step] if _has(value, step) else None
        model = _model_for(model, value)
    return tuple(where), value, around


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)


def _model_below(model: type[BaseModel], step: str | int, value: Any) -> type[BaseModel]:
    if isinstance(step, int):
        return model
    for name, field in model.model_fields.items():
        if step in (name, field.alias):
            models = _models(field)
            return _Choice(models) if models else model  # type: ignore[return-value]
    return model


class _Choice(tuple):  # type: ignore[type-arg]
    ...


def _model_for(model: Any, value: Any) -> type[BaseModel]:
    if not isinstance(model, _Choice):
        return model  # type: ignore[no-any-return]
    wanted = value.get("type") if isinstance(value, dict) else None
    for candidate in model:
        if isinstance(candidate, OneOf):
            return candidate.model_of(value)
        kind = candidate.model_fields.get("type")
        if kind is not None and wanted in get_args(kind.annotation):
            return candidate  # type: ignore[no-any-return]
    return model[0]  # type: ignore[no-any-return]


def _models(field: FieldInfo) -> list[Any]:
    return [mark for mark in field.metadata if isinstance(mark, OneOf)] or _models_in(field.annotation)


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = get_args(annotation)
    marks = [part for part in parts if isinstance(part, OneOf)]
    return marks or [model for part in parts for model in _models_in(part)]


def known_paths(spec: type[BaseModel], data: Any = None) -> list[Where]:
    return list(_paths(spec, data, (), 0))


def _paths(model: type[BaseModel], data: Any, above: Where, depth: int) -> Iterator[Where]:
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        yield path
        models = _models(field)
        inner = data.get(path[-1]) if isinstance(data, dict) else None
        many = len(models) > 1 or any(isinstance(model, OneOf) for model in models)
        if models and depth < MAX_LEVELS and (not many or isinstance(inner, dict)):
            yield from _paths(_model_for(_Choice(models), inner), inner, path, depth + 1)


def suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word[:MAX_WORD], list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _unknown_key(where: Where, model: type[BaseModel], everywhere: Iterable[Where]) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    if HIDDEN & set(where[:-1]):
        return f"expected only the keys {', '.join(known)}, found another"
    key = str(where[-1])[:MAX_WORD]
    elsewhere = [_dotted(path)[:-2] for path in everywhere if path[-1] == key and len(path) > 1]
    if len(elsewhere) == 1:
        return f"unknown key {key!r}; did you mean {elsewhere[0]!r}?"
    if meant := suggestion(key, known):
        return f"unknown key {key!r}{meant}"
    return f"unknown key {key!r}; expected one of: {', '.join(known)}"


def _text(item: Any, where: Where, value: Any) -> str:
    kind, message, context = item["type"], item["msg"], item.get("ctx", {})
    if kind == "forebay":
        return str(message)
    if kind == "missing":
        return "missing; it has no default"
    if kind == "union_tag_not_found":
        found = ", found one without" if isinstance(value, dict) else _found(where, value)
        return "expected a mapping with the key 'type'" + found
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']+)'", context["expected_tags"])
        tag = str(context["tag"])[:MAX_WORD]
        return f"type: expected one of {', '.join(tags)}, found {tag!r}{suggestion(tag, tags)}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "expected a mapping" + _found(where, value)
    if kind == "tuple_type":
        return "expected a list" + _found(where, value)
    message = re.sub(r"^(Input|String|Value|Tuple) should ", "should ", message)
    message = re.sub(
        r"^should (be |have )?", lambda found: "expected " + _WORDS.get(found.group(1), ""), message
    )
    message = re.sub(r"^expected (greater|less) than", r"expected a number \1 than", message)
    for theirs, ours in TYPES.items():
        message = message.replace(theirs, ours)
    meant = ""
    if kind in ("int_type", "float_type") and isinstance(value, str) and NUMBER.fullmatch(value):
        meant = "; remove the quotes"
    elif kind == "literal_error" and isinstance(value, str) and not HIDDEN & set(where):
        meant = suggestion(value, re.findall(r"'([^']+)'", context["expected"]))
    return message + _found(where, value) + meant


NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?", re.ASCII)
TYPES = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
}
"""Pydantic's words for types, and ours."""
_WORDS = {"have ": "", "be ": "", None: "one that should "}


def _found(where: Where, value: Any) -> str:
    return "" if HIDDEN & set(where) else f", found {describe(value)}"


def describe(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"


@dataclass(frozen=True, slots=True)
class _Place:
    text: str
    line: int | None = None


def _place(
    where: Where, text: str, name: str, lines: Mapping[Where, int], given: Collection[Where]
) -> _Place:
    if any(where[: len(path)] == path for path in given):
        return _Place("--set")
    if where not in lines and any(re.search(rf"\b{re.escape(_dotted(path)[:-2])}\b", text) for path in given):
        # A default that conflicts with what was set.
        return _Place("--set")
    line = _line(where, lines)
    return _Place(name if line is None else f"{name}:{line}", line)


def _line(where: Where, lines: Mapping[Where, int]) -> int | None:
    for length in range(len(where), -1, -1):
        if where[:length] in lines:
            return lines[where[:length]]
    return None


def _dotted(where: Where) -> str:
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return f"{text}: " if text else ""
