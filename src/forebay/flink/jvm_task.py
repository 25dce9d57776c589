"""Access to a task of Flink's JVM beyond PyFlink: Java's private fields, method handles, keys."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyflink.datastream import KeyedProcessFunction, RuntimeContext

log = logging.getLogger(__name__)

HasRoom = Callable[[], bool]
YOUNG = 10_000
CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"


def collect_less() -> None:
    """Look for reference cycles less often: scanning the requests in flight took a fifth of the time."""
    if "pemja" in sys.modules:
        gc.set_threshold(YOUNG, 20, 20)


def is_cancelled() -> bool:
    """Whether Flink has cancelled this thread's task. Its interrupt does not end a wait in Python."""
    try:
        thread = find_class("java.lang.Thread")
    except ImportError:
        return False
    return bool(thread.currentThread().isInterrupted())


def output_room(runtime_context: object) -> HasRoom:
    """Return a check for whether the next emitted record is accepted without a wait.

    It reads a private field of Flink 2.3; if that is missing, there is always room.
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


def barrier_look(runtime_context: RuntimeContext) -> Callable[[], bool]:
    """Return a check for whether an unaligned checkpoint's barrier waits for the task's thread.

    It reads private fields of Flink 2.3; if one is missing, the result is always False.
    """
    if getattr(runtime_context, "_runtime_context", None) is None:
        return _never
    try:
        task_input = java_field(java_field(stream_task(runtime_context), "inputProcessor"), "input")
        gate = java_field(java_field(task_input, "checkpointedInputGate"), "inputGate")
    except Exception as error:
        log.warning("checkpoints wait while an operator's input is blocked: %s", error)
        return _never
    return lambda: bool(gate.getPriorityEventAvailableFuture().isDone())


def _never() -> bool:
    return False


def stream_task(runtime_context: RuntimeContext) -> Any:
    """Raises `LookupError` if one of Flink's names is missing."""
    environment = java_field(runtime_context._runtime_context, "taskEnvironment")
    return java_field(java_field(environment, "containingTask"), "invokable")


def operator_of(runtime_context: RuntimeContext) -> Any:
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
    """Yield this subtask's keys with something in one of the named states, which must be open; each key once.

    For a function's `open`. State and timers are those of the last yielded key. Emit nothing meanwhile.
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
    """Set a processing-time timer of the current key, outside Flink's current round of timers.

    A round fires all timers up to the first one's time, including those set meanwhile. If the clock was set
    back, a function that sets one at each firing would loop. Checkpoints do not contain this timer.
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


def java_field(of: Any, name: str) -> Any:
    """Private or inherited. Raises `LookupError`."""
    return private_field(of, name).get(of)


def private_field(of: Any, name: str) -> Any:
    kind = of.getClass()
    while kind is not None:
        for each in kind.getDeclaredFields():
            if each.getName() == name:
                each.setAccessible(True)
                return each
        kind = kind.getSuperclass()
    raise LookupError(f"Flink's {of.getClass().getName()} has no field {name}")


def java_method(of: Any, name: str, arguments: int | None = None) -> Any:
    return unbound_method(of.getClass(), name, arguments).bindTo(of)


def unbound_method(kind: Any, name: str, arguments: int | None = None, *, first: str | None = None) -> Any:
    """`arguments` and the type `first` of the first one select an overload. Raises `LookupError`."""
    for each in kind.getMethods():
        if each.getName() != name or arguments not in {None, each.getParameterCount()}:
            continue
        if first is None or each.getParameterTypes()[0].getName() == first:
            each.setAccessible(True)
            return find_class("java.lang.invoke.MethodHandles").publicLookup().unreflect(each)
    raise LookupError(f"Flink's {kind.getName()} has no method {name}")


def java_proxy(interface: str, handle: Any) -> Any:
    return find_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        find_class("java.lang.Class").forName(interface), handle
    )


class JavaNumber:
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def update(self, value: float) -> None:
        self._reference.set(float(value))


def number_gauge(group: Any, name: str) -> Any:
    """A gauge with the method `update`, whose number Java holds.

    Flink would call a Python gauge on its metrics thread while the task's thread runs in the same
    interpreter, which can crash the JVM. PyFlink's distributions hold whole numbers only.
    """
    java = getattr(group, "_metrics", None)
    if java is None:
        return group.distribution(name)
    reference = find_class("java.util.concurrent.atomic.AtomicReference")(0.0)
    java.gauge(name, java_proxy("org.apache.flink.metrics.Gauge", java_method(reference, "get", 0)))
    return JavaNumber(reference)


def java_items(iterable: Any) -> Iterator[Any]:
    if isinstance(iterable, list):
        yield from iterable
        return
    items = iterable.iterator()
    while items.hasNext():
        yield items.next()


def find_class(name: str) -> Any:
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    return findClass(name)
