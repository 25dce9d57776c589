"""Waking a shard from another thread: its timer is fired on the task's thread, with no look in between.

Flink's task runs what it is sent as a mail between two records: state, key, outputs and checkpoints are as in
any timer. PyFlink offers no mail, so one is made of what is there: Flink's own callback for a processing-time
timer, which takes the key and fires a timer of it, put together from method handles. That needs names of
Flink's that are private; where one is missing, there are no wakes, and the operator looks for answers.
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
"""The time of the timer that a wake fires; no clock comes to it."""
CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"
PAST_MS = 0
"""A time that has passed: what is to be done then is done at once."""


class Wakes:
    """Fires `on_timer(WOKEN_MS)` of a keyed function for another thread.

    `wake` is for any thread and returns at once, all else for the function's. Before a key was added, and
    after `close`, a wake does nothing. A wake is not in a checkpoint: whoever restores one looks after its
    shards by itself.
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
        """Let `each` find `key`, the key in hand."""
        if self._service is None:
            return
        try:
            # As Java's own object: a key that went through Python may come back as another type.
            self._keys[key] = self._backend.getCurrentKey()
            if self._callback is None:
                timers = ctx.timer_service()._j_timer_service
                self._callback = _sends(self._service, _fires(timers))
        except Exception as error:
            self._do_without(error)

    @property
    def works(self) -> bool:
        """Whether a wake is sent; once one was refused, none is."""
        return self._callback is not None

    def each(self, keys: Iterable[int]) -> Iterator[int]:
        """Those of `keys` that were added. Until the next one is asked for, state and timers are its own;
        then they are those of the last."""
        for key in keys:
            if key in self._keys:
                self._backend.setCurrentKey(self._keys[key])
                yield key

    def wake(self) -> None:
        """Have the timer fired, after what the task does at present."""
        with self._lock:
            if self._callback is None:
                return
            try:
                self._callback.run()
            except Exception as error:
                # As when the task has ended, and its operator is about to be closed.
                log.info("the task was not woken, and is not from now on: %s", error)
                self._callback = None

    def close(self) -> None:
        """No wake from now on."""
        with self._lock:
            self._service = self._callback = None

    def _do_without(self, error: Exception) -> None:
        log.warning("this Flink cannot be woken, so answers are looked for: %s", error)
        self.close()


def _fires(timers: Any) -> Any:
    """A callback that fires a timer of the key in hand at `WOKEN_MS`; `timers` is Flink's timer service."""
    handles = find_class("java.lang.invoke.MethodHandles")
    internal = java_field(timers, "internalTimerService")
    operator = java_field(internal, "triggerTarget")
    timer = _timer(timers, internal)
    fire = java_method(operator, "onProcessingTime").bindTo(timer)
    # By handles, so that the key stays Flink's own object: on a way through Python it may change its type.
    take_key = handles.foldArguments(java_method(operator, "setCurrentKey"), java_method(timer, "getKey"))
    both = handles.foldArguments(fire, take_key)
    # The callback is given a time, which nobody needs.
    time_type = java_method(timer, "getTimestamp").type().returnType()
    return java_proxy(CALLBACK, handles.dropArguments(both, 0, [time_type]))


def _sends(service: Any, callback: Any) -> Any:
    """What has the task call `callback`: a `Runnable`, as what it takes or gave back would cost memory on a
    thread that never returns to Java."""
    handles = find_class("java.lang.invoke.MethodHandles")
    register = java_method(service, "registerTimer")
    now = handles.constant(register.type().parameterType(0), PAST_MS)
    return java_proxy("java.lang.Runnable", handles.collectArguments(register, 0, now).bindTo(callback))


def _timer(timers: Any, internal: Any) -> Any:
    """A timer of the key in hand, as Flink makes them; it is not left in the queue."""
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
