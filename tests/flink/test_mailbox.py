"""A task's mailbox: mails run, and an answer is emitted when it arrives, without polling."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.flink.test_inference import Make, assert_exact, events

from forebay.flink import mailbox
from forebay.flink.mailbox import MAX_MAILS, Mailbox, OperatorWaker
from forebay.flink.request_pool import PollInterval
from forebay.testing import wait_until


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


NO_LOOKS = PollInterval(rescue_ms=3_600_000)


@pytest.mark.flink
def test_answers_are_emitted_without_polls_or_new_records(make_runs: Make) -> None:
    runs = make_runs(follow=True, pace=NO_LOOKS)
    runs.feed([*events(0, 40), *events(40, 44, hold="a")])
    job = runs.start()
    wait_until(lambda: len(runs.results()) == 40)
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 44)
    runs.stop(job)
    assert_exact(runs, 44)


@pytest.mark.flink
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_answers_wake_restored_shards(make_runs: Make, before: int, after: int) -> None:
    runs = make_runs(follow=True, pace=NO_LOOKS)
    runs.feed([*events(0, 20), *events(20, 28, hold="a")])
    job = runs.start(parallelism=before)
    wait_until(lambda: len(runs.results()) == 20)
    runs.await_checkpoint(job)
    runs.stop(job)
    job = runs.start(parallelism=after, restore=True)
    wait_until(lambda: len(runs.calls()) == 36)
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 28)
    runs.stop(job)
    assert_exact(runs, 28)


class Sent:
    def __init__(self, fails: bool = False) -> None:
        self.count = 0
        self.made = 0
        self.locked: Callable[[], bool] = lambda: True
        self._fails = fails

    def run(self) -> None:
        self.count += 1
        assert self.locked(), "its end waits for it"
        if self._fails:
            raise RuntimeError("RejectedExecutionException")


def wakes_of(monkeypatch: pytest.MonkeyPatch, sent: Sent) -> OperatorWaker:
    """Wakes of a task that accepts every mail."""
    monkeypatch.setattr("forebay.flink.mailbox._fires", lambda timers: "callback")

    def sends(executor: object, mail: object) -> Sent:
        sent.made += 1
        return sent

    monkeypatch.setattr("forebay.flink.mailbox._sends", sends)
    monkeypatch.setattr("forebay.flink.mailbox._fires_later", lambda java, timers, fire: None)
    monkeypatch.setattr("forebay.flink.mailbox.stream_task", lambda context: "task")
    monkeypatch.setattr("forebay.flink.mailbox.java_field", lambda of, name: "executor")
    wakes = OperatorWaker(context())
    sent.locked = wakes._lock.locked
    return wakes


def context() -> Any:
    return SimpleNamespace(
        _runtime_context=SimpleNamespace(),
        get_keyed_state_backend=lambda: SimpleNamespace(_keyed_state_backend=Backend()),
    )


class Backend:
    """Flink's keyed state, whose keys are rows."""

    def __init__(self) -> None:
        self.key = ("row", 1)

    def getCurrentKey(self) -> Any:
        return self.key

    def setCurrentKey(self, key: Any) -> None:
        self.key = key


def keyed() -> Any:
    return SimpleNamespace(timer_service=lambda: SimpleNamespace(_j_timer_service=None))


def test_wakes_are_sent_from_first_shard_to_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay")
    sent = Sent()
    wakes = wakes_of(monkeypatch, sent)
    wakes.wake()
    assert not wakes.works
    wakes.add(1, keyed())
    assert wakes.works
    assert sent.count == 0
    wakes.wake()
    assert sent.count == 1
    wakes.close()
    wakes.wake()
    assert sent.count == 1
    wakes.add(1, keyed())
    assert not wakes.works
    assert caplog.records == []


def test_each_added_shard_gets_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent()
    wakes = wakes_of(monkeypatch, sent)
    backend: Any = wakes._backend
    for key in (1, 2, 3):
        backend.key = ("row", key)
        wakes.add(key, keyed())
    assert [(key, backend.key) for key in wakes.each([3, 7, 1])] == [(3, ("row", 3)), (1, ("row", 1))]
    assert sent.made == 1, "one is enough for all"


def test_closed_task_does_not_fail_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(fails=True)
    wakes = wakes_of(monkeypatch, sent)
    wakes.add(1, keyed())
    wakes.wake()
    wakes.wake()
    assert sent.count == 1
    # From now on, answers are looked for.
    assert not wakes.works


def missing_timers(java: Any, timers: Any, fire: Any) -> Any:
    raise LookupError("no method registerProcessingTimeTimer")


def closed_timers(java: Any, timers: Any, fire: Any) -> Any:
    def wake_after(wait_s: float) -> None:
        raise RuntimeError("Timer service is shut down")

    return wake_after


@pytest.mark.parametrize("later", [missing_timers, closed_timers])
def test_answers_wake_the_task_even_if_its_timers_fail(monkeypatch: pytest.MonkeyPatch, later: Any) -> None:
    sent = Sent()
    wakes = wakes_of(monkeypatch, sent)
    monkeypatch.setattr(mailbox, "_fires_later", later)
    wakes.add(1, keyed())
    wakes.wake_after(1.0)
    wakes.wake()
    assert wakes.works
    assert sent.count == 1


def test_no_wakes_without_a_jvm(caplog: pytest.LogCaptureFixture) -> None:
    wakes = OperatorWaker(SimpleNamespace())  # type: ignore[arg-type]
    wakes.add(1, keyed())
    assert not wakes.works
    assert caplog.records == []


def test_flink_without_needed_names_is_polled_and_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # First the task has another name, then the timers.
    for task in ({}, {"stream_task": lambda context: "task", "java_field": lambda of, name: "executor"}):
        for name, replacement in task.items():
            monkeypatch.setattr(mailbox, name, replacement)
        wakes = OperatorWaker(context())
        for key in (1, 2):
            wakes.add(key, keyed())
        assert not wakes.works
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Flink's mailbox is not available, so timers poll for answers"
    ] * 2
