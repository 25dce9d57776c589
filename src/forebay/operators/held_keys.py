"""All keys of a keyed function that hold something.

Flink hands a function the state of one key at a time, with that key's next record or timer. Of a key that has
neither soon, as where the clock was set back since its timers were set, nothing would be heard.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyflink.datastream import KeyedProcessFunction, RuntimeContext


def held_keys(
    runtime_context: RuntimeContext, *states: str
) -> Iterator[tuple[int, KeyedProcessFunction.Context]]:
    """The keys of this subtask with something in one of the states of these names, which must be open; each
    key once.

    For a function's `open` and whatever runs on its thread. Until the next one is asked for, state and timers
    are those of the key that was given; then they are those of before. Nothing may be emitted meanwhile.
    """
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    backend = runtime_context.get_keyed_state_backend()
    java, context = backend._keyed_state_backend, backend._function_context
    namespace = findClass("org.apache.flink.runtime.state.VoidNamespace").INSTANCE
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
