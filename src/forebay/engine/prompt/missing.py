"""Values that a template gets for a missing field or null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined
from jinja2.runtime import Undefined
from jinja2.utils import missing

from forebay.errors import TemplateFailed

OWN = {"key": "the record has no key", "time_ms": "the event has no time"}


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


def is_null(value: object) -> bool:
    """Whether `value` is null: items of lists are None, fields `NullField`."""
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
    """The variables of a rendering: fields, and Forebay's own. A null is a `NullField` with its name."""
    names = {name: value if value is not None else _null_field(name) for name, value in fields.items()}
    return names | {
        name: value if value is not None else NullField(OWN[name], name=name) for name, value in own.items()
    }


def _null_field(name: str) -> NullField:
    return NullField(f"field {name!r} is null", name=name)
