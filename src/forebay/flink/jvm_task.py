"""What a function inside Flink's JVM needs of its task beyond PyFlink."""

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
CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"


def collect_less() -> None:
    """Let Python look for reference cycles less often; outside a JVM, nothing changes.

    Requests in flight are thousands of young objects: by default, Python scans them again and again, for a
    fifth of the processor's time, and finds nothing.
    """
    if "pemja" in sys.modules:
        gc.set_threshold(YOUNG, 20, 20)


def is_cancelled() -> bool:
    """Whether Flink has cancelled this thread's task; False outside a JVM.

    Flink interrupts the thread of a cancelled task, which a wait in Python does not notice.
    """
    try:
        from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM
    except ImportError:
        return False
    return bool(findClass("java.lang.Thread").currentThread().isInterrupted())


def output_room(runtime_context: object) -> HasRoom:
    """A function that returns whether the next emitted record is accepted without a wait.

    For functions that emit many records in one call. Flink 2.3 has this only in a private field; if that is
    missing, there is always room.
    """
    java = getattr(runtime_context, "_runtime_context", None)
    if java is None:
        return _always
    try:
        writers: list[Any] = list(java_field(java, "taskEnvironment").getAllWriters())
    except Exception as error:
        log.warning("cannot read whether there is room downstream: %s", error)
        return _always
    return lambda: all(writer.isAvailable() for writer in writers)


def _always() -> bool:
    return True


def stream_task(runtime_context: RuntimeContext) -> Any:
    """The Flink task that runs the function with this context, inside a JVM. Raises `LookupError` if a name
    of Flink's is missing."""
    environment = java_field(runtime_context._runtime_context, "taskEnvironment")
    return java_field(java_field(environment, "containingTask"), "invokable")


def operator_of(runtime_context: RuntimeContext) -> Any:
    """The Flink operator that runs the function with this context, inside a JVM. Raises `LookupError` if
    there is none."""
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
    """The keys of this subtask with something in one of the named states, which must be open; each key once.

    For a function's `open`, and on its thread. State and timers are those of the last yielded key; at the
    end, those of the key before. Emit nothing meanwhile.
    """
    backend = runtime_context.get_keyed_state_backend()
    java, context = backend._keyed_state_backend, backend._function_context
    namespace = find_class("org.apache.flink.runtime.state.VoidNamespace").INSTANCE
    # Keep Java's objects: a key that passed through Python may change its type.
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
    """Set a processing-time timer of the current key at `time_ms`, outside Flink's current round of timers.

    Flink waits for the first timer, then fires all up to its time, including those set meanwhile. If the wall
    clock was set back, a function that sets a timer at each firing would be called in a loop, and no record
    or barrier would pass. No checkpoint holds this timer: set it again after a restore.
    """
    backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
    timers = ctx.timer_service()._j_timer_service
    take_key = java_method(backend, "setCurrentKey").bindTo(backend.getCurrentKey())
    # Flink passes the time for which it was registered.
    set_timer = find_class("java.lang.invoke.MethodHandles").foldArguments(
        java_method(timers, "registerProcessingTimeTimer"), take_key
    )
    call = java_proxy(CALLBACK, set_timer)
    runtime_context._runtime_context.getProcessingTimeService().registerTimer(time_ms, call)
