"""Wakes a shard from another thread: fires its timer on the task's thread, without polling.

Flink's task runs mails between two records. PyFlink offers none, so one is built from Flink's callback for
processing-time timers, with method handles. If a private name of Flink is missing, nothing is woken, and the
operator polls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from pyflink.datastream import KeyedProcessFunction, RuntimeContext

from forebay.flink.java_objects import find_class, java_field, java_method, java_proxy

log = logging.getLogger(__name__)

WOKEN_MS = 2**50
"""Time of the timer that a wake fires; no clock reaches it."""
CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"
PAST_MS = 0


class OperatorWaker:
    """Fires `on_timer(WOKEN_MS)` of a keyed function from another thread.

    `wake` may be called on any thread; the rest belongs to the function's thread. Before `add` and after
    `close`, a wake does nothing. A checkpoint holds no wakes: look at all shards after a restore.
    """

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._callback: Any = None
        self._keys: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._service: Any = None
        java = getattr(runtime_context, "_runtime_context", None)
        if java is None:
            return
        try:
            self._service = java.getProcessingTimeService()
            self._backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
        except Exception as error:
            self._do_without(error)

    def add(self, key: int, ctx: KeyedProcessFunction.Context) -> None:
        """Let `each` find `key`, Flink's current key."""
        if self._service is None:
            return
        try:
            # Keep Java's object: a key that passed through Python may change its type.
            self._keys[key] = self._backend.getCurrentKey()
            if self._callback is None:
                timers = ctx.timer_service()._j_timer_service
                self._callback = _sends(self._service, _fires(timers))
        except Exception as error:
            self._do_without(error)

    @property
    def works(self) -> bool:
        """Whether wakes are sent; not any more after one failed."""
        return self._callback is not None

    def each(self, keys: Iterable[int]) -> Iterator[int]:
        """Yield those of `keys` that were added, each as Flink's current key; at the end, the last one stays
        the current key."""
        for key in keys:
            if key in self._keys:
                self._backend.setCurrentKey(self._keys[key])
                yield key

    def wake(self) -> None:
        """Fire the timer, after what the task does now."""
        with self._lock:
            if self._callback is None:
                return
            try:
                self._callback.run()
            except Exception as error:
                # For example, the task has ended, and its operator is about to be closed.
                log.info("waking the task failed, and stops: %s", error)
                self._callback = None

    def close(self) -> None:
        with self._lock:
            self._service = self._callback = None

    def _do_without(self, error: Exception) -> None:
        log.warning("Flink's mailbox is not available, so timers poll for answers: %s", error)
        self.close()


def _fires(timers: Any) -> Any:
    """A callback that fires a timer of the current key at `WOKEN_MS`; `timers` is Flink's timer service."""
    handles = find_class("java.lang.invoke.MethodHandles")
    internal = java_field(timers, "internalTimerService")
    operator = java_field(internal, "triggerTarget")
    timer = _timer(timers, internal)
    fire = java_method(operator, "onProcessingTime").bindTo(timer)
    # By handles, so that the key stays Flink's object: through Python it may change its type.
    take_key = handles.foldArguments(java_method(operator, "setCurrentKey"), java_method(timer, "getKey"))
    both = handles.foldArguments(fire, take_key)
    # Ignore the time that the callback gets.
    time_type = java_method(timer, "getTimestamp").type().returnType()
    return java_proxy(CALLBACK, handles.dropArguments(both, 0, [time_type]))


def _sends(service: Any, callback: Any) -> Any:
    """A `Runnable` that lets the task call `callback`. Arguments or return values would leak memory on a
    thread that never returns to Java."""
    handles = find_class("java.lang.invoke.MethodHandles")
    register = java_method(service, "registerTimer")
    now = handles.constant(register.type().parameterType(0), PAST_MS)
    return java_proxy("java.lang.Runnable", handles.collectArguments(register, 0, now).bindTo(callback))


def _timer(timers: Any, internal: Any) -> Any:
    """A timer of the current key, made by Flink and removed from its queue."""
    timers.registerProcessingTimeTimer(WOKEN_MS)
    try:
        queue = java_field(internal, "processingTimeTimersQueue").iterator()
        try:
            while queue.hasNext():
                timer = queue.next()
                if timer.getTimestamp() == WOKEN_MS:
                    return timer
        finally:
            queue.close()
    finally:
        timers.deleteProcessingTimeTimer(WOKEN_MS)
    raise LookupError("a timer that was set is not there")
