"""A function runs on a thread of Flink's JVM, and has to end when Flink ends its task."""

from __future__ import annotations


def is_cancelled() -> bool:
    """Whether Flink wants this operator's thread to stop.

    Flink interrupts the thread of a task that it cancels, which a wait in Python does not notice.
    """
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    return bool(findClass("java.lang.Thread").currentThread().isInterrupted())
