"""What a function inside Flink's JVM asks of the task whose thread it is on, past PyFlink."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyflink.datastream import KeyedProcessFunction, RuntimeContext

from forebay.flink.java_objects import find_class, java_field, java_items, java_method, java_proxy

log = logging.getLogger(__name__)

HasRoom = Callable[[], bool]
YOUNG = 10_000
"""New objects after which Python looks for reference cycles among them."""
CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"


def collect_less() -> None:
    """Have Python look for reference cycles less often; outside a JVM, nothing changes.

    What is in flight is thousands of objects, all of them young: by its own rule Python looks through them
    again and again, for a fifth of the processor's time, and finds nothing.
    """
    if "pemja" in sys.modules:
        gc.set_threshold(YOUNG, 20, 20)


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
        writers: list[Any] = list(java_field(java, "taskEnvironment").getAllWriters())
    except Exception as error:
        log.warning("Flink does not say whether there is room downstream: %s", error)
        return _always
    return lambda: all(writer.isAvailable() for writer in writers)


def _always() -> bool:
    return True


def stream_task(runtime_context: RuntimeContext) -> Any:
    """Flink's task that runs the function with this context, inside a JVM. Raises `LookupError` if a name of
    Flink's is missing."""
    environment = java_field(runtime_context._runtime_context, "taskEnvironment")
    return java_field(java_field(environment, "containingTask"), "invokable")


def operator_of(runtime_context: RuntimeContext) -> Any:
    """Flink's operator that runs the function with this context, inside a JVM. Raises `LookupError` if there
    is none."""
    wanted = runtime_context._runtime_context.getOperatorUniqueID()
    chain = java_field(stream_task(runtime_context), "operatorChain")
    for wrapper in java_items(chain.getAllOperators()):
        operator = wrapper.getStreamOperator()
        if operator.getOperatorID().toString() == wanted:
            return operator
    raise LookupError(f"the task has no operator {wanted}")


def held_keys(
    runtime_context: RuntimeContext, *states: str
) -> Iterator[tuple[int, KeyedProcessFunction.Context]]:
    """The keys of this subtask with something in one of the states of these names, which must be open; each
    key once.

    For a function's `open` and whatever runs on its thread. Until the next one is asked for, state and timers
    are those of the key that was given; then they are those of before. Nothing may be emitted meanwhile.
    """
    backend = runtime_context.get_keyed_state_backend()
    java, context = backend._keyed_state_backend, backend._function_context
    namespace = find_class("org.apache.flink.runtime.state.VoidNamespace").INSTANCE
    # As Java's own objects: a key that went through Python may come back as another type.
    before, seen = java.getCurrentKey(), set[int]()
    try:
        for java_key in [key for state in states for key in java.getKeys(state, namespace).toList()]:
            java.setCurrentKey(java_key)
            key = context.get_current_key()
            if key not in seen:
                seen.add(key)
                yield key, context
    finally:
        if before is not None:
            java.setCurrentKey(before)


def set_after_round(runtime_context: RuntimeContext, ctx: KeyedProcessFunction.Context, time_ms: int) -> None:
    """Set a processing-time timer of the key in hand, at `time_ms`: behind the round that Flink is in.

    Flink's timer service waits for the first of its timers, then fires all up to that one's time in one
    round, also those that are set meanwhile. Where the wall clock was set back since, that time is far ahead:
    a function that sets a timer at each firing would be called again and again until the clock is there, and
    neither a record nor a checkpoint's barrier would get its turn.

    For a function's thread. Until `time_ms` no checkpoint holds it: whoever restores one sets it anew.
    """
    backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
    timers = ctx.timer_service()._j_timer_service
    take_key = java_method(backend, "setCurrentKey").bindTo(backend.getCurrentKey())
    # Flink calls it with the time that it was registered for.
    set_timer = find_class("java.lang.invoke.MethodHandles").foldArguments(
        java_method(timers, "registerProcessingTimeTimer"), take_key
    )
    call = java_proxy(CALLBACK, set_timer)
    runtime_context._runtime_context.getProcessingTimeService().registerTimer(time_ms, call)
