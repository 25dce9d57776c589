"""Thread mode: the operator runs on a thread of Flink's JVM, and some rules differ from a worker process."""

from __future__ import annotations

from pyflink.datastream import RuntimeContext


def is_embedded(runtime_context: RuntimeContext) -> bool:
    """Whether the operator with this context runs inside the JVM."""
    return ".embedded." in type(runtime_context).__module__


def is_cancelled() -> bool:
    """Whether Flink wants this operator's thread to stop; only to be asked inside the JVM.

    Flink interrupts the thread of a task that it cancels, which a wait in Python does not notice.
    """
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    return bool(findClass("java.lang.Thread").currentThread().isInterrupted())
