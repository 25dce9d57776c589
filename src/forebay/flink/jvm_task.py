"""What a Python function that runs inside Flink's JVM may ask of the task whose thread it is on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

HasRoom = Callable[[], bool]


def is_cancelled() -> bool:
    """Whether Flink wants this thread to stop; outside a JVM it never does.

    Flink interrupts the thread of a task that it cancels, which a wait in Python does not notice.
    """
    try:
        from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM
    except ImportError:
        return False
    return bool(findClass("java.lang.Thread").currentThread().isInterrupted())


def output_room(runtime_context: object) -> HasRoom:
    """Whether what the function hands on now is taken without a wait.

    It is Flink's own rule, by which a task takes no input while its output has no free buffer; a function
    that hands on many records in one call has to ask by itself. Flink 2.3 tells it to Java alone, by a
    private field of the runtime context. Where that is missing, there is always said to be room.
    """
    java = getattr(runtime_context, "_runtime_context", None)
    if java is None:
        return _always
    try:
        field = java.getClass().getDeclaredField("taskEnvironment")
        field.setAccessible(True)
        writers: list[Any] = list(field.get(java).getAllWriters())
    except Exception as error:
        log.warning("Flink does not say whether there is room downstream: %s", error)
        return _always
    return lambda: all(writer.isAvailable() for writer in writers)


def _always() -> bool:
    return True
