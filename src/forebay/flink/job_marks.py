"""Marks and files that a function inside Flink leaves for its run."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from forebay.flink.checkpoints import END_MARK, END_NOTE
from forebay.flink.jvm_task import (
    find_class,
    java_field,
    java_items,
    java_method,
    java_proxy,
    operator_of,
    stream_task,
    unbound_method,
)

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext

log = logging.getLogger(__name__)


def mark_end(runtime_context: RuntimeContext) -> None:
    """Mark the job's end when its final checkpoint has completed; call it in `open`.

    Flink then deletes that checkpoint. Without the mark, a run killed before it noted the end would start
    again.
    """
    if getattr(runtime_context, "_runtime_context", None) is None:
        return
    try:
        write_at_end(runtime_context, END_MARK)
    except Exception as error:
        log.warning("the end of this job is not marked, and a kill at its end may run it again: %s", error)


def write_at_end(runtime_context: RuntimeContext, name: str, text: str = "") -> None:
    """Write a file into the job's folder after the task's final checkpoint. Raises `LookupError`.

    Java writes it, because PyFlink closes a function earlier.
    """
    task = stream_task(runtime_context)
    storage = java_field(java_field(task, "subtaskCheckpointCoordinator"), "checkpointStorage")
    folder = java_field(java_field(storage, "delegate"), "checkpointsDirectory")
    if folder is not None:
        java_field(task, "finalCheckpointCompleted").thenRun(_writes(folder, name, text))


def _writes(folder: Any, name: str, text: str) -> Any:
    place = folder.suffix(f"/{name}")
    mode = find_class("org.apache.flink.core.fs.FileSystem$WriteMode").OVERWRITE
    handles = find_class("java.lang.invoke.MethodHandles")
    create = java_method(place.getFileSystem(), "create", 2).bindTo(place).bindTo(mode)
    stream = create.type().returnType()
    written = unbound_method(stream, "close")
    if text:
        string = find_class("java.lang.Class").forName("java.lang.String")
        # Keep Java's string: Python's bytes would change their type.
        data = handles.collectArguments(
            unbound_method(string, "getBytes", 0), 0, handles.constant(string, text)
        )
        write = handles.collectArguments(unbound_method(stream, "write", 1, first="[B"), 1, data)
        written = handles.foldArguments(written, write.asType(written.type()))
    return java_proxy("java.lang.Runnable", handles.filterReturnValue(create, written))


STATE = "kept-counts"
NOT_COUNTED = "what is written is not counted, so the counts at the end of a run may be too low"


class KeptCounts:
    """A text per subtask of a function, restored with its job, because Flink's metrics restart from 0."""

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
        if self._state is not None:
            self._state.update([f"{self._run} {text}"])

    def note(self, text: str) -> None:
        if self._state is None:
            return
        try:
            write_at_end(self._context, f"{END_NOTE}-{uuid.uuid4().hex}", text)
        except Exception as error:
            log.warning("%s: %s", NOT_COUNTED, error)


ANSWERED, READ = "answered", "read"


def mark_name(job: str, what: str) -> str:
    return f"forebay.{job}.{what}"


class ActivityMarks:
    """For a function inside Flink's JVM, on its thread: semaphores that `EmbeddedActivity` waits for."""

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._answered: Any = None
        self._read: Any = None
        java = getattr(runtime_context, "_runtime_context", None)
        if java is None:
            return
        try:
            job = java.getJobInfo().getJobId().toString()
            held = find_class("java.lang.System").getProperties()
            self._answered, self._read = held.get(mark_name(job, ANSWERED)), held.get(mark_name(job, READ))
        except Exception as error:
            log.warning("results wait for checkpoint.interval_s, because answers are not marked: %s", error)

    def answered(self) -> None:
        if self._answered is not None:
            self._answered.release()

    def read(self) -> None:
        if self._read is not None:
            self._read.release()
