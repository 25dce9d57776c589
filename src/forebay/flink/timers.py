"""A timer that is set where Flink fires timers before their time.

Flink's timer service waits for the first of its timers, then fires all up to that one's time in one round,
also those that are set meanwhile. Where the wall clock was set back since, that time is far ahead: a function
that sets a timer at each firing would be called again and again until the clock is there, and neither a
record nor a checkpoint's barrier would get its turn.
"""

from __future__ import annotations

from typing import Any

from pyflink.datastream import KeyedProcessFunction, RuntimeContext

CALLBACK = "org.apache.flink.api.common.operators.ProcessingTimeService$ProcessingTimeCallback"


def set_after_round(runtime_context: RuntimeContext, ctx: KeyedProcessFunction.Context, time_ms: int) -> None:
    """Set a processing-time timer of the key in hand, at `time_ms`: behind the round that Flink is in.

    For a function's thread. Until `time_ms` no checkpoint holds it: whoever restores one sets it anew.
    """
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    backend = runtime_context.get_keyed_state_backend()._keyed_state_backend
    timers = ctx.timer_service()._j_timer_service
    handles = findClass("java.lang.invoke.MethodHandles")

    def method(of: Any, name: str) -> Any:
        found = next(each for each in of.getClass().getMethods() if each.getName() == name)
        found.setAccessible(True)
        return handles.publicLookup().unreflect(found).bindTo(of)

    take_key = method(backend, "setCurrentKey").bindTo(backend.getCurrentKey())
    # Flink calls it with the time that it was registered for.
    set_timer = handles.foldArguments(method(timers, "registerProcessingTimeTimer"), take_key)
    call = findClass("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        findClass("java.lang.Class").forName(CALLBACK), set_timer
    )
    runtime_context._runtime_context.getProcessingTimeService().registerTimer(time_ms, call)
