"""One rendering: values for missing fields and null, and a budget of work.

Work is counted, not timed, so that a record always has the same result. One unit is about one character. The
budget bounds time and memory for any template and event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined
from jinja2.environment import Environment
from jinja2.runtime import Context, Undefined
from jinja2.utils import missing

from forebay.errors import TemplateFailed
from forebay.json_numbers import ExactFloat


class FieldMissing(TemplateFailed):
    """A field is missing or null, or a required text is empty."""


class MissingField(StrictUndefined):
    """A missing field: any use except `is defined` and `default` fails, with its name."""

    __slots__ = ()

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: str | None = None, exc: Any = None
    ) -> None:
        if hint is None and name is not None:
            hint = f"field {name!r} is missing"
        super().__init__(hint, obj, name, *([exc] if exc is not None else []))


class NullField(MissingField):
    """A field that is null: like a missing one, except that it is false and equals `none`."""

    __slots__ = ()

    def __bool__(self) -> bool:  # type: ignore[override]
        return False

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return is_null(other)

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return not is_null(other)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(None)


OWN_NULLS = {
    "key": NullField("the record has no key", name="key"),
    "time_ms": NullField("the event has no time", name="time_ms"),
}


def is_null(value: object) -> bool:
    return value is None or isinstance(value, NullField)


def is_absent(value: object) -> bool:
    return value is None or isinstance(value, Undefined)


def require(value: Any) -> None:
    """Raise jinja2's `UndefinedError` for a missing or null field, `FieldMissing` for None."""
    if isinstance(value, Undefined):
        str(value)
    if value is None:
        raise FieldMissing('a value is null; give it another one, as in `value | default("-")`')


def with_nulls(fields: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    names = {**fields, **own}
    for name, value in names.items():
        if value is None:
            names[name] = OWN_NULLS[name] if name in own else NullField(f"field {name!r} is null", name=name)
    return names


NODE = 8
ITEM = 2 * NODE
"""Units of an item before it is created: a short text takes some 80 bytes."""


class Budgeted(Context):
    def __init__(self, environment: Environment, names: dict[str, Any], work: int) -> None:
        super().__init__(environment, names, None, {})
        self.work = work

    def charge(self, units: int) -> None:
        """Take `units` from the budget; negative ones count as 0. Raises `TemplateFailed` when it is
        spent.
        """
        self.work -= max(units, 0)
        if self.work < 0:
            raise TemplateFailed(
                "the template does too much work for one record; shorten its loops or the values it repeats"
            )

    def weigh(self, value: Any) -> int:
        """Charge for everything in `value`, and return how much that was.

        Stops once the budget is spent. Raises jinja2's `UndefinedError` if `value` contains a missing field.
        """
        before = self.work
        if type(value) is str:
            self.charge(NODE + len(value))
            return before - self.work
        stack = [value]
        while stack:
            item = stack.pop()
            kind = type(item)
            if kind is str:
                self.charge(NODE + len(item))
            elif kind is dict:
                self.charge(NODE * (1 + len(item)))
                stack.extend(item.keys())
                stack.extend(item.values())
            elif kind is list or kind is tuple:
                self.charge(NODE * (1 + len(item)))
                stack.extend(item)
            elif kind is int:
                self.charge(NODE + item.bit_length() // 3)
            elif isinstance(item, Undefined) and not is_null(item):
                str(item)  # raises for a missing field
            elif kind is ExactFloat:
                self.charge(NODE + len(item.text))
            else:
                self.charge(2 * NODE)
        return before - self.work
