"""The mailbox of a task: what waits there is run, and the key in hand is that of before."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.flink import mailbox
from forebay.flink.mailbox import MOST_MAILS, Mailbox


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


CONTEXT: Any = SimpleNamespace(timer_service=lambda: SimpleNamespace(_j_timer_service="timers"))


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Any, str], Any]:
    """What the private fields of Flink's objects hold, by object and name."""
    found: dict[tuple[Any, str], Any] = {
        ("timers", "internalTimerService"): "internal",
        ("internal", "triggerTarget"): "operator",
        ("operator", "container"): "task",
    }

    def field(of: Any, name: str) -> Any:
        if (of, name) not in found:
            raise LookupError(f"no field {name}")
        return found[of, name]

    monkeypatch.setattr(mailbox, "java_field", field)
    return found


@pytest.mark.parametrize(("mails", "run"), [(0, 0), (3, 3), (MOST_MAILS + 1, MOST_MAILS)])
def test_mails_run_and_leave_the_key_alone(mails: int, run: int, fields: dict[Any, Any]) -> None:
    task = Task(mails)
    fields["task", "mainMailboxExecutor"] = task
    Mailbox(task.context()).run_mails(CONTEXT)
    assert (task.run, task.key) == (run, "in hand")


def test_a_mail_that_fails_fails_the_call(fields: dict[Any, Any]) -> None:
    task = Task(-1)
    fields["task", "mainMailboxExecutor"] = task
    with pytest.raises(RuntimeError, match="MailboxClosed"):
        Mailbox(task.context()).run_mails(CONTEXT)
    assert task.key == "in hand"


def test_a_flink_that_shows_no_mailbox_is_reported_once(
    fields: dict[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "forebay")
    task = Task(3)
    closed = Mailbox(task.context())
    for _ in range(2):
        closed.run_mails(CONTEXT)
    assert (task.run, task.key) == (0, "in hand")
    assert [record.getMessage() for record in caplog.records] == [
        "checkpoints wait until the last answer: this Flink shows no mailbox: no field mainMailboxExecutor"
    ]


def test_outside_a_jvm_there_are_no_mails() -> None:
    nothing: Any = SimpleNamespace()
    Mailbox(nothing).run_mails(CONTEXT)
