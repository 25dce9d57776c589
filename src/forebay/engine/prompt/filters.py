"""The filters, tests and methods of templates, each with bounded work.

An allow-list: Jinja's other filters can return many times their input (`center`, `format`, `batch`,
`wordwrap`) or are for HTML. What may create many items is charged beforehand, since memory cannot be taken
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import orjson
from jinja2 import filters as jinja_filters
from jinja2 import pass_context
from jinja2.environment import Environment
from jinja2.runtime import LoopContext, Undefined
from jinja2.tests import TESTS as JINJA_TESTS

from forebay.engine.prompt.rendering import ITEM, NODE, Budgeted, is_absent, is_null, require
from forebay.errors import TemplateFailed
from forebay.json_numbers import dump_json

MAX_NUMBER_CHARS = 400
"""Longest text that `int` and `float` convert: longer ones take quadratic time on some Pythons."""


def _of_numbers(name: str) -> Callable[..., bool]:
    jinja_test = cast(Callable[..., bool], JINJA_TESTS[name])

    def test(value: Any, *args: Any) -> bool:
        for number in (value, *args):
            if isinstance(number, Undefined):
                str(number)
            if not isinstance(number, int | float):
                raise TemplateFailed(f"{name!r} takes numbers, found {_kind(number)}")
        result: bool = jinja_test(value, *args)
        return result

    return test


TESTS = {
    name: JINJA_TESTS[name]
    for name in (
        *("boolean", "true", "false", "string", "number", "integer", "float"),
        *("mapping", "sequence", "iterable"),
        *("eq", "ne", "lt", "le", "gt", "ge", "in", "==", "!=", "<", "<=", ">", ">="),
    )
} | {name: _of_numbers(name) for name in ("odd", "even", "divisibleby")}
TESTS |= {"defined": lambda value: not is_absent(value), "undefined": is_absent, "none": is_null}

LOOP_ATTRIBUTES = frozenset(
    (
        *("index", "index0", "first", "last", "length", "revindex", "revindex0"),
        *("previtem", "nextitem", "depth", "depth0"),
    )
)

STR_METHODS = frozenset(
    (
        *("upper", "lower", "title", "capitalize", "strip", "lstrip", "rstrip", "startswith", "endswith"),
        *("removeprefix", "removesuffix", "split", "rsplit", "splitlines", "partition", "rpartition"),
        *("count", "find", "index", "isdigit", "isalpha", "isalnum", "isspace", "replace"),
    )
)
DICT_METHODS = frozenset(("get", "items", "keys", "values"))
LIST_METHODS = frozenset(("count", "index"))
LOOP_METHODS = frozenset(("cycle", "changed"))
METHODS = STR_METHODS | DICT_METHODS | LIST_METHODS | LOOP_METHODS


def as_text(context: Budgeted, value: Any) -> str:
    """`value` as in a prompt: text unchanged, the rest as JSON. Raises if it is null or missing."""
    if type(value) is str:
        return value
    if isinstance(value, Undefined):
        return str(value)
    require(value)
    return to_json(context, value)


def to_json(context: Budgeted, value: Any, indent: int | None = None) -> str:
    weight = context.weigh(value)
    if indent:
        # Each value is on its own line, after two spaces per level.
        context.charge(weight * (1 + _depth(value) // NODE))
    try:
        return dump_json(value, _null, orjson.OPT_INDENT_2 if indent else None).decode()
    except orjson.JSONEncodeError as error:
        raise TemplateFailed(f"a value cannot be written as JSON: {error}") from None


def _null(value: Any) -> None:
    if not is_null(value):
        raise TypeError


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [
        inner
        for outer in level
        if isinstance(outer, dict | list | tuple)
        for inner in (outer.values() if isinstance(outer, dict) else outer)
    ]:
        depth += 1
    return depth


def replaced(context: Budgeted, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = as_text(context, value), as_text(context, old), as_text(context, new)
    times = text.count(old) if old else len(text) + 1
    context.charge(2 * len(text) + times * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _join(context: Budgeted, value: Any, d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        value = jinja_filters.sync_do_map(context, value, attribute=attribute)
    separator = as_text(context, d)
    parts = []
    for item in value:
        parts.append(as_text(context, item))
        context.charge(NODE + len(parts[-1]) + len(separator))
    return separator.join(parts)


def _indent(context: Budgeted, value: Any, width: int = 4, first: bool = False) -> str:
    if not isinstance(width, int):
        raise TemplateFailed("indent takes a number of blanks")
    text, width = as_text(context, value), min(max(width, 0), 1000)
    context.charge(len(text) + (text.count("\n") + 1) * width)
    pad = " " * width
    return (pad if first else "") + text.replace("\n", "\n" + pad)


def _truncate(
    context: Budgeted, value: Any, length: int = 255, killwords: bool = False, end: str = "..."
) -> str:
    text = as_text(context, value)
    return jinja_filters.do_truncate(context.environment, text, length, killwords, as_text(context, end), 0)


def _number(convert: Callable[[Any], Any]) -> Callable[..., Any]:
    def number(context: Budgeted, value: Any, default: Any = 0) -> Any:
        if isinstance(value, str) and len(value) > MAX_NUMBER_CHARS:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError, OverflowError):
            return default

    return number


def _to_int(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        return int(float(value))


def _round(context: Budgeted, value: Any, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(value, int | float):
        raise TemplateFailed(f"round takes a number, found {_kind(value)}")
    if not isinstance(precision, int) or abs(precision) > 20:
        raise TemplateFailed("round takes a precision of -20 to 20")
    return jinja_filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _sum(context: Budgeted, value: Any, attribute: str | None = None, start: float = 0) -> Any:
    if attribute is not None:
        value = jinja_filters.sync_do_map(context, value, attribute=attribute)
    total = start
    for item in value:
        context.charge(NODE)
        require(item)
        if not isinstance(item, int | float):
            raise TemplateFailed(f"sum adds numbers, found {type(item).__name__}")
        total += item
    return total


def _per_item(function: Callable[..., Any]) -> Callable[..., Any]:
    def per_item(context: Budgeted, value: Any, *args: Any, **kwargs: Any) -> Any:
        weight = context.weigh(args) + context.weigh(tuple(kwargs.values()))
        context.charge((ITEM + weight) * len(value))
        return function(context, value, *args, **kwargs)

    return per_item


def _with_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, value, *args, **kwargs: function(context.environment, value, *args, **kwargs)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, value, *args, **kwargs: function(value, *args, **kwargs)


def _of_text(name: str) -> Callable[..., Any]:
    return lambda context, value, *args: method(context, as_text(context, value), name, *args)


def _wordcount(context: Budgeted, value: Any) -> int:
    return len(method(context, as_text(context, value), "split"))


def _edge(index: int) -> Callable[..., Any]:
    def edge(context: Budgeted, value: Any) -> Any:
        items = value if isinstance(value, str) else list(value)
        if len(items):
            return items[index]
        return context.environment.undefined(hint="an empty list has no first or last item")

    return edge


@pass_context
def _default(context: Budgeted, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if is_absent(value) or (boolean and not value) else value


def method(context: Budgeted, value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    allowed: frozenset[str] = frozenset()
    if isinstance(value, str):
        if name == "replace":
            return replaced(context, value, *args, **kwargs)
        allowed = STR_METHODS
        _charge_method(context, value, name, *args, **kwargs)
    elif isinstance(value, dict):
        allowed = DICT_METHODS
    elif isinstance(value, list | tuple):
        allowed = LIST_METHODS
    elif isinstance(value, LoopContext):
        allowed = LOOP_METHODS
    if name not in allowed:
        raise TemplateFailed(f"{_kind(value)} has no method {name!r}")
    result = getattr(value, name)(*args, **kwargs)
    return list(result) if isinstance(value, dict) and name != "get" else result


def _charge_method(
    context: Budgeted, text: str, name: str, arg: Any = None, maxsplit: Any = -1, **kwargs: Any
) -> None:
    arg, maxsplit = kwargs.get("sep", arg), kwargs.get("maxsplit", maxsplit)
    given = len(arg) if isinstance(arg, str) else 0
    if name in ("strip", "lstrip", "rstrip", "rsplit", "rpartition"):
        # Searching backwards, Python compares with each character of the argument at each position.
        context.charge(len(text) * given)
    if name in ("upper", "lower", "title", "capitalize") and not text.isascii():
        # Some characters become three.
        context.charge(2 * len(text))
    if name in ("split", "rsplit", "splitlines"):
        pieces = text.count(arg) if given else len(text) // 2
        if name != "splitlines" and isinstance(maxsplit, int) and maxsplit >= 0:
            pieces = min(pieces, maxsplit)
        context.charge(ITEM * (pieces + 1))


def _kind(value: Any) -> str:
    return {type(None): "null", str: "a text", dict: "an object", list: "a list", LoopContext: "loop"}.get(
        type(value), f"a {type(value).__name__}"
    )


_UNBOUNDED: dict[str, Callable[..., Any]] = {
    "abs": _plain(abs),
    "capitalize": _of_text("capitalize"),
    "count": _plain(len),
    "dictsort": _plain(jinja_filters.do_dictsort),
    "first": _edge(0),
    "float": _number(float),
    "indent": _indent,
    "int": _number(_to_int),
    "items": _plain(jinja_filters.do_items),
    "join": _per_item(_join),
    "last": _edge(-1),
    "length": _plain(len),
    "list": _per_item(_plain(list)),
    "lower": _of_text("lower"),
    "map": _per_item(jinja_filters.sync_do_map),
    "max": _per_item(_with_environment(jinja_filters.do_max)),
    "min": _per_item(_with_environment(jinja_filters.do_min)),
    "reject": _per_item(jinja_filters.sync_do_reject),
    "rejectattr": _per_item(jinja_filters.sync_do_rejectattr),
    "replace": replaced,
    "reverse": _plain(lambda value: value[::-1] if isinstance(value, str) else list(value)[::-1]),
    "round": _round,
    "select": _per_item(jinja_filters.sync_do_select),
    "selectattr": _per_item(jinja_filters.sync_do_selectattr),
    "sort": _per_item(_with_environment(jinja_filters.do_sort)),
    "string": as_text,
    "sum": _per_item(_sum),
    "title": _of_text("title"),
    "tojson": to_json,
    "trim": _of_text("strip"),
    "truncate": _truncate,
    "unique": _per_item(_with_environment(jinja_filters.do_unique)),
    "upper": _of_text("upper"),
    "wordcount": _wordcount,
}


def _bounded(function: Callable[..., Any], *, null: bool = False) -> Callable[..., Any]:
    @pass_context
    def bounded(context: Budgeted, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not (null and is_null(value)):
            require(value)
        context.weigh(value)
        context.weigh(args)
        context.weigh(kwargs)
        result = function(context, value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = list(result)
        if isinstance(result, float) and not math.isfinite(result) and result is not value:
            raise TemplateFailed("a filter returns a number that cannot be written")
        context.weigh(result)
        return result

    return bounded


FILTERS: dict[str, Callable[..., Any]] = {name: _bounded(function) for name, function in _UNBOUNDED.items()}
FILTERS["default"] = FILTERS["d"] = _default
FILTERS["tojson"] = _bounded(to_json, null=True)


def install(environment: Environment) -> None:
    environment.filters = dict(FILTERS)
    environment.tests = dict(TESTS)
