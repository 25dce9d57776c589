"""Counts that a function keeps in its job's checkpoints, and writes into the job's folder at the end.

Flink's metrics restart from 0, and disappear with the job: a short job ends before anyone has read them.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from pyflink.datastream import RuntimeContext

from forebay.flink.checkpoints import END_NOTE
from forebay.flink.end_mark import write_at_end
from forebay.flink.java_objects import find_class, java_items
from forebay.flink.jvm_task import operator_of

log = logging.getLogger(__name__)

STATE = "kept-counts"
NOT_COUNTED = "what is written is not counted, so the counts at the end of a run may be too low"


class KeptCounts:
    """A text for each subtask of a function, restored with its job. Create it when the function opens.

    Flink spreads a checkpoint's texts over the subtasks: `restored` are those that this one has of the same
    `run`; `subtasks` is their number. Outside a JVM nothing is kept.
    """

    def __init__(self, runtime_context: RuntimeContext, run: str) -> None:
        self._context = runtime_context
        self._run = run
        self._state: Any = None
        self.restored: tuple[str, ...] = ()
        self.subtasks = 1
        if getattr(runtime_context, "_runtime_context", None) is None:
            return
        try:
            descriptor = find_class("org.apache.flink.api.common.state.ListStateDescriptor")
            strings = find_class("org.apache.flink.api.common.typeutils.base.StringSerializer").INSTANCE
            backend = operator_of(runtime_context).getOperatorStateBackend()
            state = backend.getListState(descriptor(STATE, strings))
            # PyFlink's own method calls one that Flink 2 has removed.
            info = runtime_context._runtime_context.getTaskInfo()
            self.subtasks = int(info.getNumberOfParallelSubtasks())
            kept = (str(text).partition(" ") for text in java_items(state.get()))
            self.restored = tuple(text for of, _, text in kept if of == run)
            self._state = state
        except Exception as error:
            log.warning("%s: %s", NOT_COUNTED, error)

    def keep(self, text: str) -> None:
        """Put `text` into the next checkpoint. On the function's thread."""
        if self._state is not None:
            self._state.update([f"{self._run} {text}"])

    def note(self, text: str) -> None:
        """Write `text` into the job's folder when the final checkpoint has completed, if this subtask has
        finished. Call it when the function closes."""
        if self._state is None:
            return
        try:
            write_at_end(self._context, f"{END_NOTE}-{uuid.uuid4().hex}", text)
        except Exception as error:
            log.warning("%s: %s", NOT_COUNTED, error)
