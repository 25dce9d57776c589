"""The mark of a finished job: a file in the folder of its checkpoints.

Flink deletes a finished job's last checkpoint. A command killed before it noted the end would find nothing,
and run the job again. So the mark is written before: when a task at the end of its input learns that its
final checkpoint has completed.
"""

from __future__ import annotations

import logging
from typing import Any

from pyflink.datastream import RuntimeContext

from forebay.flink.checkpoints import END_MARK
from forebay.flink.java_objects import find_class, java_field, java_method, java_proxy, unbound_method
from forebay.flink.jvm_task import stream_task

log = logging.getLogger(__name__)


def mark_end(runtime_context: RuntimeContext) -> None:
    """Let the task with this context write its job's mark when its final checkpoint has completed. Call it in
    `open`. Does nothing outside a JVM or without a checkpoint folder."""
    if getattr(runtime_context, "_runtime_context", None) is None:
        return
    try:
        write_at_end(runtime_context, END_MARK)
    except Exception as error:
        log.warning("the end of this job is not marked, and a kill at its end may run it again: %s", error)


def write_at_end(runtime_context: RuntimeContext, name: str, text: str = "") -> None:
    """Let the task with this context write a file into its job's checkpoint folder, if any, when its final
    checkpoint has completed.

    Inside a JVM only. Java does all of it: PyFlink closes a function before the final checkpoint. Raises
    `LookupError` if a name of Flink's is missing.
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
