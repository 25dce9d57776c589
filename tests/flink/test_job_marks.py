"""A job's end mark exists before Flink deletes the last checkpoint, and never without an end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.flink.test_inference import assert_exact, events

from forebay.flink import job_marks
from forebay.flink.checkpoints import END_MARK, checkpoints_of
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs


@pytest.mark.flink
def test_end_is_marked_before_checkpoints_are_deleted(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs()
    runs.feed([*events(0, 6), *events(6, 8, hold="a")])
    job = runs.start()
    folder = runs.checkpoints / job.id
    wait_until(lambda: len(runs.results()) == 6)
    # Some results are committed, and the input has ended.
    assert not (folder / END_MARK).exists()
    runs.release("a")
    wait_until(lambda: not checkpoints_of(folder))
    assert (folder / END_MARK).exists()
    runs.finish(job)
    assert_exact(runs, 8)


@pytest.mark.flink
@pytest.mark.parametrize("after", [1, 2, 3])
def test_partly_ended_job_is_resumed(make_runs: Callable[..., Runs], after: int) -> None:
    runs = make_runs(keyed=True)
    # The calls of one key are held, so one of two subtasks comes to its end.
    runs.feed([*events(0, 20, keys=8), {"n": 20, "text": "event 20 ((hold:a))", "key": "k0"}])
    job = runs.start(parallelism=2)
    wait_until((runs.checkpoints / job.id / END_MARK).exists)
    wait_until(lambda: len(runs.results()) == 20)
    runs.await_checkpoint(job)
    runs.stop(job)
    job = runs.start(restore=True, parallelism=after)
    runs.release("a")
    runs.finish(job)
    assert_exact(runs, 21)
    assert len(runs.calls()) == 22
    assert (runs.checkpoints / job.id / END_MARK).exists()


@pytest.mark.flink
def test_job_cancelled_at_its_end_has_no_mark(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs()
    runs.feed([*events(0, 6), *events(6, 8, hold="a")])
    job = runs.start()
    wait_until(lambda: len(runs.results()) == 6)
    runs.stop(job)
    assert checkpoints_of(runs.checkpoints / job.id)
    assert not (runs.checkpoints / job.id / END_MARK).exists()


def test_flink_without_end_hook_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(context: Any) -> Any:
        raise LookupError("no field containingTask")

    monkeypatch.setattr(job_marks, "stream_task", missing)
    caplog.set_level(logging.WARNING, "forebay")
    nowhere, task = SimpleNamespace(), SimpleNamespace(_runtime_context=object())
    for context in (nowhere, task):
        job_marks.mark_end(context)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "the end of this job is not marked, and a kill at its end may run it again: no field containingTask"
    ]
