"""The mailbox of a Flink task: a function that waits for long runs its mails meanwhile.

Flink sends checkpoints, timers and commits to a function's thread as mails, between two records. At the end
of the input, the operator waits for its answers inside one call, and would block them.
"""

from __future__ import annotations

import logging
from typing import Any

from pyflink.datastream import RuntimeContext

from forebay.flink.java_objects import java_field
from forebay.flink.jvm_task import stream_task

log = logging.getLogger(__name__)

MAX_MAILS = 1000
"""Mails that one call runs at most: each may send another."""


class Mailbox:
    """Runs the mails of the task of a keyed function, on the function's thread.

    Outside a JVM it runs none. It uses private names of Flink; if one is missing, no mails run, and
    checkpoints wait until the function returns.
    """

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
        """Run the mails that are there; never waits for one.

        A mail may call the function again, with another key; the current key is restored. The function's
        state must be as consistent as between two calls, and everything emitted must have left it. Raises
        what a mail raises, for example if the task is cancelled.
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
