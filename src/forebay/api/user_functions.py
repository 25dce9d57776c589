"""Errors of users' functions in sinks, with the place in the message."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forebay.errors import FunctionFailed
from forebay.records import DeadLetter, Event, Result

MAX_SHOWN_CHARS = 80
MARK = " failed for "
"""Separates the function and the element."""


@contextmanager
def failing_as(where: str, what: str, item: Any) -> Iterator[None]:
    """Raise errors of the block as `FunctionFailed`, naming the sink `where`, the step `what` and the
    element.
    """
    try:
        yield
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise FunctionFailed(f"{where}: {what}{MARK}{shown(item)}: {said}") from error


def shown(item: Any) -> str:
    """With the id and key, if it has them."""
    kind, known = type(item).__name__, dict[str, str | None]()
    if isinstance(item, Result):
        kind, known = "result", {"id": item.id, "key": item.key}
    elif isinstance(item, DeadLetter):
        kind, known = "dead letter", {"id": item.id or item.position, "key": item.key}
    elif isinstance(item, Event):
        kind, known = "event", {"position": item.position}
    parts = [f"{name} {_bounded(repr(value))}" for name, value in known.items() if value]
    return f"the {kind} with {' and '.join(parts)}" if parts else f"the {kind} {_bounded(reprlib.repr(item))}"


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def function_of(cause: str) -> str | None:
    """The sink and function of a failure; None if it was not a user's function."""
    kind = f"{FunctionFailed.__name__}: "
    return cause.removeprefix(kind).partition(MARK)[0] if cause.startswith(kind) and MARK in cause else None
