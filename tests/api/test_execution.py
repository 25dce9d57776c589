from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.api.execution import JUDGE_EVERY, Counts, JobMonitor, follow, lines, rest_of
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.flink.environment import FlinkConfig
from forebay.flink.job import JobFailure, end_job
from forebay.flink.rest import FlinkRest
from forebay.testing import local_cluster, wait_until

from .conftest import Start

pytestmark = pytest.mark.flink
TIMEOUT_S = 120


@pytest.mark.usefixtures("flink_logs")
def test_other_failure_is_reported_in_one_line() -> None:
    def refuse(text: str) -> str:
        raise ValueError(f"no {text}")

    env = fb.environment(options={"restart-strategy.type": "none"}, log_every_s=None)
    env.from_collection(["tea"]).map(refuse).print()
    with pytest.raises(PipelineFailed, match=r"^the Flink job failed.*: ValueError: no tea; Flink's log"):
        env.execute("tea")


@pytest.mark.usefixtures("flink_logs")
def test_job_without_operators_is_rejected() -> None:
    with pytest.raises(PipelineFailed, match=r"Flink refused the job: .*No operators"):
        fb.environment().execute("nothing")


PROGRAM = """
import logging, sys
import forebay as fb
from forebay.testing import Fixed, ScriptedEngineFactory

logging.basicConfig(level=logging.INFO)
cluster = sys.argv[1] if len(sys.argv) > 1 else None
env = fb.environment(checkpoints="state", every_s=0.3, cluster=cluster)
ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01)), prompt="{{ text }}")
fb.write_jsonl(fb.infer(fb.read_text(env, sys.path[0] + "/in", follow=True), ask).results, "out")
env.execute("lines")
"""


def interrupted(process: subprocess.Popen[bytes], said: Path) -> str:
    """Interrupt a program once its job has a checkpoint; returns its output."""
    done = f"{said.parent}/state"
    wait_until(lambda: "the job runs" in said.read_text(), timeout_s=TIMEOUT_S)
    wait_until(lambda: any(Path(done).glob("*/chk-*/_metadata")), timeout_s=TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == -signal.SIGINT
    return said.read_text()


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_with_one_message(start: Start, tmp_path: Path) -> None:
    text = interrupted(start("said"), tmp_path / "said")
    assert text.count("Traceback") == 1
    assert "while sending command" not in text
    assert text.endswith("KeyboardInterrupt\n")
    assert "is cancelled; its checkpoints stay" in text
    assert any((tmp_path / "state").glob("*/chk-*/_metadata"))


@pytest.mark.long
def test_job_on_a_cluster_starts_once_and_ctrl_c_cancels_it(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with local_cluster(tmp_path / "cluster") as address:
        rest = FlinkRest(f"http://{address}")
        state.mkdir()
        first = start("first", address)
        wait_until(lambda: any(state.glob("*/chk-*/_metadata")), timeout_s=TIMEOUT_S)
        first.kill()
        first.wait()
        (job,) = rest.json("/jobs")["jobs"]
        assert job["status"] == "RUNNING"
        assert start("second", address).wait(TIMEOUT_S) == 1
        assert (
            f"job {job['id']}, which has its checkpoints in state, still runs"
            in (tmp_path / "second").read_text()
        )
        assert end_job(rest, job["id"], TIMEOUT_S) == "CANCELED"
        text = interrupted(start("third", address), tmp_path / "third")
        assert "the job resumes from checkpoint state/" in text
        assert f"at {address} is cancelled; its checkpoints stay" in text
        assert {each["status"] for each in rest.json("/jobs")["jobs"]} == {"CANCELED"}
        assert len(rest.json("/jobs")["jobs"]) == 2


COUNTS = {
    "accepted": 40.0,
    "restored": 2.0,
    "results": 30.0,
    "dead_letters": 1.0,
    "in_flight": 8.0,
    "pending": 3.0,
}
LINE = "sort: 42 events in, 30 results, 1 dead letter, 8 in flight, 3 waiting"
VALUE = "FunctionFailed: write_kafka 'teams': value failed for the result with id '1': KeyError: 'team'"
SAME = VALUE.replace("'1'", "'2'")
KEY = VALUE.replace("value", "key")
OTHER = "TimeoutException: no answer"


class FakeJob:
    """A job that is polled once for each of its `rounds`: counts, or failures with time and cause; None:
    Flink does not answer."""

    def __init__(self, rounds: Sequence[Any], state: str = "RESTARTING", *, runs: bool = False) -> None:
        self._rounds = list(rounds)
        self._now: Any = {}
        self._failures: list[JobFailure] = []
        self._state, self._runs = state, runs
        self.cancelled = 0
        self.asked_counts = 0

    def wait(self) -> bool:
        self._now = self._rounds.pop(0)
        if isinstance(self._now, tuple):
            self._failures.append(JobFailure(self._now[0], "a task", self._now[1]))
        return not self._rounds

    def failures(self) -> list[JobFailure]:
        if self._now is None:
            raise LaunchError("Flink does not answer")
        return self._failures

    def state(self) -> str:
        return self._state

    def all_run(self) -> bool:
        return self._runs

    def by_operator(self) -> Counts:
        self.asked_counts += 1
        return self._now if isinstance(self._now, dict) else {}

    def cancel(self) -> None:
        self.cancelled += 1


def said(
    caplog: pytest.LogCaptureFixture, job: FakeJob, level: int = logging.INFO, count_every: int | None = 1
) -> list[str]:
    caplog.set_level(level, "forebay")
    follow(JobMonitor(job, count_every).look, job.wait)
    return [record.getMessage() for record in caplog.records if record.name == "forebay"]


def test_times_of_1970_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds = [{"sort": {**COUNTS, "suspect_times": float(count)}} for count in (0, 2, 5)]
    found = [line for line in said(caplog, FakeJob(rounds)) if "1970" in line]
    assert [line[:50] for line in found] == ["2 events so far have times in 1970 or 1900: is the"]


def test_one_line_per_operator_with_events() -> None:
    found = {
        "sort": COUNTS,
        "again": {"accepted": 1.0},
        "idle": {"accepted": 0.0},
        "source": {"limit_reached": 1.0},
        "teams: records": {"too_large": 2.0},
        "letters: records": {"too_large": 0.0},
        "trends-clock": {"records": 12.0, "dead_letters": 10.0},
    }
    assert lines(found) == [
        "again: 1 event in, 0 results, 0 dead letters, 0 in flight, 0 waiting",
        LINE,
        "trends-clock: 12 events in, 10 dead letters",
        "teams: records: 2 too large for the topic",
    ]


def test_unchanged_counts_are_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    more = {**COUNTS, "results": 31.0}
    job = FakeJob([{}, {"sort": COUNTS}, {"sort": COUNTS}, {"sort": more}, {"sort": COUNTS}])
    assert said(caplog, job) == [LINE, LINE.replace("30 results", "31 results"), LINE]


def test_silent_flink_is_polled_again(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, FakeJob([None, {"sort": COUNTS}, None, {"sort": COUNTS}])) == [LINE]


def test_running_job_is_reported_at_the_start_and_after_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = said(caplog, FakeJob([{}, {}, (1, OTHER), {}], runs=True))
    assert words == ["the job runs", f"Flink restarts the job: {OTHER}", "the job runs"]


def test_each_restart_is_reported_once_even_without_info_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FakeJob([{}, (1, OTHER), {}, (2, OTHER), {"sort": COUNTS}], runs=True)
    assert said(caplog, job, logging.WARNING) == [f"Flink restarts the job: {OTHER}"] * 2
    assert job.cancelled == 0


@pytest.mark.parametrize("state", ["FAILING", "FAILED", "CANCELLING"])
def test_failure_that_ends_the_job_is_not_a_restart(caplog: pytest.LogCaptureFixture, state: str) -> None:
    assert said(caplog, FakeJob([(1, OTHER)], state)) == []


def test_job_is_cancelled_if_one_function_fails_twice_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FakeJob([(1, VALUE), {}, (2, SAME), {}, (3, SAME)])
    follower = JobMonitor(job, 1)
    follow(follower.look, job.wait)
    assert [record.getMessage() for record in caplog.records] == [f"Flink restarts the job: {VALUE}"]
    assert (job.cancelled, follower.hopeless) == (1, True)
    assert follower.last == JobFailure(2, "a task", SAME)


@pytest.mark.parametrize(
    "failures",
    [
        [(1, VALUE), (2, OTHER), (3, SAME)],
        [(1, VALUE), (2, KEY)],
        [(1, VALUE), (700_002, SAME)],
        [(1, OTHER), (2, OTHER)],
    ],
    ids=["another between", "another function", "much later", "no function"],
)
def test_other_failures_are_left_to_flink(failures: list[tuple[int, str]]) -> None:
    job = FakeJob(failures)
    follower = JobMonitor(job, 1)
    follow(follower.look, job.wait)
    assert (job.cancelled, follower.hopeless) == (0, False)


def test_rejected_cancellation_is_retried() -> None:
    class Deaf(FakeJob):
        def cancel(self) -> None:
            super().cancel()
            if self.cancelled == 1:
                raise LaunchError("Flink does not answer")

    job = Deaf([(1, VALUE), (2, SAME), {}, {}])
    follow(JobMonitor(job, 1).look, job.wait)
    assert job.cancelled == 2


def test_cluster_is_queried_at_its_address() -> None:
    rest = rest_of(None, FlinkConfig(cluster="flink:8081"))
    assert rest is not None
    assert rest.url == "http://flink:8081"


@pytest.mark.parametrize("every_s", [0, -1.0, float("nan")])
def test_invalid_interval_is_rejected(every_s: float) -> None:
    with pytest.raises(SettingError, match="log_every_s: expected a number of seconds above 0, or None"):
        fb.environment(log_every_s=every_s)


ALL_DEAD = {"accepted": 20.0, "dead_letters": 19.0, "in_flight": 1.0}
SHOUT = "sort: all of the first 19 events became dead letters"


def test_only_dead_letters_is_reported_once_even_without_info_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = FakeJob([{}] * JUDGE_EVERY + [{"sort": ALL_DEAD}] * 10)
    (line,) = said(caplog, job, logging.WARNING)
    assert line.startswith(SHOUT)
    assert job.asked_counts == 2  # There is nothing more to report.


@pytest.mark.parametrize(
    "found",
    [
        COUNTS,
        {"accepted": 9.0, "dead_letters": 9.0},
        {"accepted": 40.0, "dead_letters": 20.0, "in_flight": 20.0},
        {"accepted": 20.0, "dead_letters": 19.0, "results": 1.0},
        {"records": 1000.0, "dead_letters": 10.0},
        {"records": 1000.0, "dead_letters": 950.0},
    ],
    ids=["usual", "few", "half", "one result", "late posts", "most are late"],
)
def test_dead_letters_among_results_are_not_warned_about(
    caplog: pytest.LogCaptureFixture, found: dict[str, float]
) -> None:
    assert said(caplog, FakeJob([{"sort": found}] * 10), logging.WARNING) == []


def test_without_a_listener_counts_are_polled_until_the_first_result() -> None:
    none_yet = {"sort": {"accepted": 3.0, "dead_letters": 0.0}}
    rounds = [*[{}] * JUDGE_EVERY, *[none_yet] * JUDGE_EVERY, *[{"sort": COUNTS}] * 10]
    job = FakeJob(rounds)
    follow(JobMonitor(job, 1).look, job.wait)
    assert job.asked_counts == 3


def test_results_end_the_polling(caplog: pytest.LogCaptureFixture) -> None:
    job = FakeJob([{}] * JUDGE_EVERY + [{"clock": {"records": 20.0, "dead_letters": 0.0}}] * 10)
    assert said(caplog, job, logging.WARNING) == []
    assert job.asked_counts == 2
    job = FakeJob([{"clock": {"records": 20.0, "dead_letters": 20.0}}] * 10)
    (line,) = said(caplog, job, logging.WARNING)
    assert line.startswith("clock: all of the first 20 events became dead letters")
