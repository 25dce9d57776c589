"""Runs mails of a Flink task (checkpoints, timers, commits) while a function waits, or sends one to it.

All of this uses private names of Flink.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyflink.datastream import KeyedProcessFunction, RuntimeContext

from forebay.flink.jvm_task import CALLBACK, find_class, java_field, java_method, java_proxy, stream_task

log = logging.getLogger(__name__)

MAX_MAILS = 1000


class Mailbox:
    """Runs mails on the function's thread. Without Flink's names, checkpoints wait for the function."""

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._executor: Any = None
        if getattr(runtime_context, "_runtime_context", None) is None:
            return
        try:
            # The task's: an operator's own runs no checkpoints.
            self._executor = java_field(stream_task(runtime_context), "mainMailboxExecutor")
            self._backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
        except Exception as error:
            log.warning("at the end of the input, checkpoints wait for the last answer: %s", error)

    def run_mails(self) -> None:
        """Run the available mails; never wait for one.

        A mail may call the function again with another key; then the current key is restored. State must be
        as consistent as between two calls, and everything emitted must have left. Raises what a mail raises.
        """
        if self._executor is None:
            return
        # Keep Java's object: a key that passed through Python may change its type.
        key = self._backend.getCurrentKey()
        try:
            for _ in range(MAX_MAILS):
                if not self._executor.tryYield():
                    break
        finally:
            self._backend.setCurrentKey(key)


WOKEN_MS = 2**50
"""Time of the timer that a wake fires; no clock reaches it."""
MAIL = "org.apache.flink.util.function.ThrowingRunnable"


class OperatorWaker:
    """Fires `on_timer(WOKEN_MS)` of a keyed function from another thread, or later, without polling.

    `wake` is for any thread, the rest for the function's. Checkpoints contain no wakes: look at all shards
    after a restore.
    """

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._callback: Any = None
        self._wake_after: Callable[[float], None] | None = None
        self._keys: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._executor: Any = None
        self._java = getattr(runtime_context, "_runtime_context", None)
        if self._java is None:
            return
        try:
            self._executor = java_field(stream_task(runtime_context), "mainMailboxExecutor")
            self._backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
        except Exception as error:
            self._do_without(error)

    def add(self, key: int, ctx: KeyedProcessFunction.Context) -> None:
        if self._executor is None:
            return
        try:
            # Keep Java's object: a key that passed through Python may change its type.
            self._keys[key] = self._backend.getCurrentKey()
            if self._callback is None:
                timers = ctx.timer_service()._j_timer_service
                fire = _fires(timers)
                self._callback = _sends(self._executor, fire)
                self._prepare_later(timers, fire)
        except Exception as error:
            self._do_without(error)

    @property
    def works(self) -> bool:
        return self._callback is not None

    def each(self, keys: Iterable[int]) -> Iterator[int]:
        """Yield those of `keys` that were added, each as Flink's current key; the last one stays current."""
        for key in keys:
            if key in self._keys:
                self._backend.setCurrentKey(self._keys[key])
                yield key

    def wake(self) -> None:
        with self._lock:
            if self._callback is None:
                return
            try:
                self._callback.run()
            except Exception as error:
                # For example, the task has ended, and its operator is about to be closed.
                log.info("waking the task failed, and stops: %s", error)
                self._callback = None

    def wake_after(self, wait_s: float) -> None:
        if self._wake_after is None:
            return
        try:
            self._wake_after(wait_s)
        except Exception as error:
            self._wake_none_later(error)

    def close(self) -> None:
        with self._lock:
            self._executor = self._callback = self._wake_after = None

    def _prepare_later(self, timers: Any, fire: Any) -> None:
        try:
            self._wake_after = _fires_later(self._java, timers, fire)
        except Exception as error:
            self._wake_none_later(error)

    def _wake_none_later(self, error: Exception) -> None:
        log.info("the task's timers are not available, so some commits are noticed late: %s", error)
        self._wake_after = None

    def _do_without(self, error: Exception) -> None:
        log.warning("Flink's mailbox is not available, so timers poll for answers: %s", error)
        self.close()


def _fires(timers: Any) -> Any:
    handles = find_class("java.lang.invoke.MethodHandles")
    internal = java_field(timers, "internalTimerService")
    operator = java_field(internal, "triggerTarget")
    timer = _timer(timers, internal)
    fire = java_method(operator, "onProcessingTime").bindTo(timer)
    # By handles, so that the key stays Flink's object: through Python it may change its type.
    take_key = handles.foldArguments(java_method(operator, "setCurrentKey"), java_method(timer, "getKey"))
    return handles.foldArguments(fire, take_key)


def _fires_later(java: Any, timers: Any, fire: Any) -> Callable[[float], None]:
    handles = find_class("java.lang.invoke.MethodHandles")
    takes_time = java_method(timers, "registerProcessingTimeTimer").type()
    reference = find_class("java.util.concurrent.atomic.AtomicReference")()
    ignored = java_method(reference, "set").asType(takes_time)
    call = java_proxy(CALLBACK, handles.collectArguments(fire, 0, ignored))
    service = java.getProcessingTimeService()

    def wake_after(wait_s: float) -> None:
        service.registerTimer(service.getCurrentProcessingTime() + math.ceil(wait_s * 1000), call)

    return wake_after


def _sends(executor: Any, fire: Any) -> Any:
    handles = find_class("java.lang.invoke.MethodHandles")
    execute = java_method(executor, "execute", 2)
    name = handles.constant(execute.type().parameterType(1), "answers")
    mail = java_proxy(MAIL, fire)
    return java_proxy("java.lang.Runnable", handles.collectArguments(execute, 1, name).bindTo(mail))


def _timer(timers: Any, internal: Any) -> Any:
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
