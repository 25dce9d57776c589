from __future__ import annotations

import threading
from typing import Any

from forebay.errors import LaunchError
from forebay.flink.job_activity import CheckpointEnd, WatchedActivity


class Rest:
    """Returns `answers` in turn, and records what was requested."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    def json(self, path: str, method: str = "GET", payload: object = None) -> Any:
        self.asked.append((method, path))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def activity(*answers: Any) -> tuple[WatchedActivity, Rest]:
    rest = Rest(*answers)
    return WatchedActivity(rest, "0a"), rest  # type: ignore[arg-type]


BEGUN = {"request-id": "7"}
RUNS = {"status": {"id": "IN_PROGRESS"}, "operation": None}
DONE = {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": 3}}


def failed(trace: str = "") -> dict[str, Any]:
    cause = {"class": "CheckpointException", "stack-trace": trace}
    return {"status": {"id": "COMPLETED"}, "operation": {"failureCause": cause}}


NOT_BEGUN = failed("Aborting checkpoint. Failure reason: Not all required tasks are currently running.")


def test_changed_counts_need_a_commit() -> None:
    of, _ = activity()
    of.look(0, 0)
    assert not of.await_answer(0.0)
    of.look(2, 0)
    assert not of.await_answer(0.0)
    assert (of.take_reads(), of.take_reads()) == (True, False)
    of.look(2, 1)
    assert of.await_answer(0.0)
    of.take_answers()
    of.look(2, 1)
    assert not of.await_answer(0.0)
    # Counts start at 0 with a restart.
    of.look(0, 0)
    assert of.await_answer(0.0)


def test_wait_ends_with_an_answer_and_when_it_is_closed() -> None:
    of, _ = activity()
    threading.Timer(0.0, of.look, (1, 1)).start()
    assert of.await_answer(60.0)
    of.take_answers()
    threading.Timer(0.0, of.wake).start()
    of.await_answer(60.0)


def test_checkpoint_is_awaited_until_it_has_ended() -> None:
    of, rest = activity(BEGUN, RUNS, RUNS, DONE)
    assert of.trigger() is CheckpointEnd.COMPLETE
    assert rest.asked[0] == ("POST", "/jobs/0a/checkpoints")
    assert rest.asked[1:] == [("GET", "/jobs/0a/checkpoints/7")] * 3


def test_failed_and_unanswered_checkpoints_are_not_complete() -> None:
    for answers, end in (
        ((BEGUN, failed(), {"status": "RUNNING"}), CheckpointEnd.FAILED),
        ((BEGUN, NOT_BEGUN, {"status": "RUNNING"}), CheckpointEnd.STARTING),
        ((BEGUN, NOT_BEGUN, {"status": "RESTARTING"}), CheckpointEnd.RESTARTING),
        ((BEGUN, failed(), {"status": "FAILED"}), CheckpointEnd.RESTARTING),
        ((LaunchError("no answer"),), CheckpointEnd.FAILED),
    ):
        assert activity(*answers)[0].trigger() is end
    closed, _ = activity(BEGUN)
    closed.wake()
    assert closed.trigger() is CheckpointEnd.FAILED
