"""Closes functions whose task fails or is cancelled: PyFlink closes them at the end of their input only."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from forebay.flink.jvm_task import find_class, java_field, java_method, java_proxy, operator_of, stream_task

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext

log = logging.getLogger(__name__)


class OpenFunctions:
    def __init__(self) -> None:
        self._numbers = count()
        self._closes: dict[int, WeakMethod[Callable[[], Any]]] = {}
        self._garbage = False

    def add(self, close: Callable[[], None]) -> int:
        number = next(self._numbers)
        self._closes[number] = WeakMethod(close)
        return number

    def remove(self, number: int) -> None:
        del self._closes[number]

    def end(self, number: int) -> None:
        self._garbage = True
        try:
            if close := self._closes.pop(number)():
                close()
        except Exception:
            # Raised, it would fail a task that has finished.
            log.exception("a function of a task that ended was not closed")

    def collect(self) -> None:
        """Free ended functions: reference cycles keep them, and they keep their tasks in Java's heap."""
        if self._garbage:
            self._garbage = False
            gc.collect()


OPEN = OpenFunctions()


def close_with_task(runtime_context: RuntimeContext, close: Callable[[], None]) -> None:
    """Call `close` on the task's thread when the task ends, even by failure. For a function's `open`.

    At the end of the input PyFlink calls it, too, so it must allow a second call. This uses private names of
    Flink 2.3 and PyFlink.
    """
    if getattr(runtime_context, "_runtime_context", None) is None:
        return
    OPEN.collect()
    number = OPEN.add(close)
    try:
        python = java_field(operator_of(runtime_context), "interpreter")
        end = java_method(python, "exec", 1).bindTo(f"from {__name__} import OPEN; OPEN.end({number})")
        # A task that has not failed closes its interpreter before, and must not fail then.
        handles = find_class("java.lang.invoke.MethodHandles")
        error_class = find_class("java.lang.Class").forName("java.lang.Throwable")
        ignore = handles.dropArguments(handles.zero(end.type().returnType()), 0, [error_class])
        safe = handles.catchException(end, error_class, ignore)
        # Closed in reverse order, so before the operator of a failed task closes its interpreter.
        closer = java_field(stream_task(runtime_context), "resourceCloser")
        closer.registerCloseable(java_proxy("java.lang.AutoCloseable", safe))
    except Exception as error:
        OPEN.remove(number)
        log.warning("if this task fails, its threads and calls continue, and stay in memory: %s", error)
