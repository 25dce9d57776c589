"""A task's mailbox: mails run, and the current key stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.flink import mailbox
from forebay.flink.mailbox import MAX_MAILS, Mailbox


class Task:
    """A task of Flink's with `mails` in its mailbox; each takes a key of its own."""

    def __init__(self, mails: int) -> None:
        self.mails = mails
        self.run = 0
        self.key = "in hand"

    def tryYield(self) -> bool:
        if self.run == self.mails:
            return False
        self.run += 1
        self.key = f"of mail {self.run}"
        if self.mails < 0 and self.run == 2:
            raise RuntimeError("MailboxClosedException")
        return True

    def getCurrentKey(self) -> str:
        return self.key

    def setCurrentKey(self, key: str) -> None:
        self.key = key

    def context(self) -> Any:
        backend = SimpleNamespace(_keyed_state_backend=self)
        return SimpleNamespace(_runtime_context=object(), get_keyed_state_backend=lambda: backend)


@pytest.fixture
def task_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Task]:
    """Makes a task with this number of mails, as Flink exposes it to any function."""
    monkeypatch.setattr(mailbox, "stream_task", lambda context: "task")

    def make(mails: int) -> Task:
        task = Task(mails)
        fields = {("task", "mainMailboxExecutor"): task}
        monkeypatch.setattr(mailbox, "java_field", lambda of, name: fields[of, name])
        return task

    return make


@pytest.mark.parametrize(("mails", "run"), [(0, 0), (3, 3), (MAX_MAILS + 1, MAX_MAILS)])
def test_mails_run_and_keep_the_current_key(mails: int, run: int, task_of: Callable[[int], Task]) -> None:
    task = task_of(mails)
    Mailbox(task.context()).run_mails()
    assert (task.run, task.key) == (run, "in hand")


def test_failed_mail_fails_the_call(task_of: Callable[[int], Task]) -> None:
    task = task_of(-1)
    with pytest.raises(RuntimeError, match="MailboxClosed"):
        Mailbox(task.context()).run_mails()
    assert task.key == "in hand"


def test_flink_without_a_mailbox_is_reported(
    task_of: Callable[[int], Task], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(of: Any, name: str) -> Any:
        raise LookupError(f"no field {name}")

    caplog.set_level(logging.WARNING, "forebay")
    task = task_of(3)
    monkeypatch.setattr(mailbox, "java_field", missing)
    closed = Mailbox(task.context())
    closed.run_mails()
    assert (task.run, task.key) == (0, "in hand")
    assert [record.getMessage() for record in caplog.records] == [
        "at the end of the input, checkpoints wait for the last answer: no field mainMailboxExecutor"
    ]


def test_no_mails_outside_a_jvm() -> None:
    nothing: Any = SimpleNamespace()
    Mailbox(nothing).run_mails()
