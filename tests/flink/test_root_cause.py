"""Java's failure causes as one line for users."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from forebay.errors import PipelineFailed, SettingError
from forebay.flink.job import MAX_CAUSE_CHARS, JvmGone, RunningJob, root_cause, submit
from forebay.flink.rest import FlinkRest

JAVA = """org.apache.flink.runtime.JobException: Recovery is suppressed
	at org.apache.flink.runtime.executiongraph.Handler.handleFailure(Handler.java:180)
	at java.base/java.lang.Thread.run(Thread.java:1583)
Caused by: java.lang.RuntimeException: Error received: {told}
	at org.apache.beam.sdk.Client$Inbound.<init>(Client.java:1)
	... 7 more
"""
PYTHON = """Traceback (most recent call last):
  File "/x/y.py", line 3, in process
    at = f(record)
    at (record)
  File "/x/z.py", line 9, in f
    at.now()
ValueError: no time in it"""


def test_last_cause_without_frames_and_package() -> None:
    assert root_cause(JAVA.format(told="no room")) == "RuntimeException: Error received: no room"
    assert root_cause("a.b.C: x\n\tat app//a.b.C$D.lambda$run$0(C.java:1)\n") == "C: x"
    assert root_cause("a.b.C: x\n\t... 7 more") == "C: x"
    assert root_cause("a.b.C: x\n\tat /home/my-jobs/p.refuse(p.py:53)\n") == "C: x"


def test_python_error_is_its_own_line() -> None:
    assert root_cause(JAVA.format(told=PYTHON)) == "ValueError: no time in it"


def test_cause_is_bounded() -> None:
    assert len(root_cause("x" * 10_000)) == MAX_CAUSE_CHARS + 1


class FromJava(Py4JJavaError):
    """Py4J's exception if the called method raised `told`."""

    def __init__(self, told: str) -> None:
        super().__init__("", SimpleNamespace(_target_id="o1", _gateway_client=None))
        self.told = told

    def __str__(self) -> str:
        return f"An error occurred while calling o94.executeAsync.\n: {self.told}"


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            FromJava(
                "java.lang.IllegalArgumentException: Could not parse value 'soon' for key 'a.b'.\n"
                "\tat a.B.c(B.java:1)\nCaused by: java.lang.NumberFormatException: no number\n\t... 1 more"
            ),
            SettingError,
            "Flink's options: expected another value for a.b, found 'soon'",
        ),
        (
            FromJava(
                "org.apache.flink.util.FlinkException: Failed to execute job 'x'.\n\tat a.B.c(B.java:1)\n"
                "Caused by: java.net.ConnectException: refused\n\tat a.B.c(B.java:1)"
            ),
            PipelineFailed,
            "Flink refused the job: ConnectException: refused",
        ),
        (
            FromJava("a.b.IllegalConfigurationException: slots: 0\n\tat a.B.c(B.java:1)"),
            PipelineFailed,
            "Flink refused the job: IllegalConfigurationException: slots: 0",
        ),
        (Py4JError("gone"), JvmGone, r"the JVM that was to run the job is gone \(Py4JError\)"),
    ],
)
def test_rejected_job_is_one_sentence(error: Exception, kind: type[Exception], says: str) -> None:
    def execute_async(name: str) -> Any:
        raise error

    with pytest.raises(kind, match=f"^{says}$"):
        submit(SimpleNamespace(execute_async=execute_async), "x", FlinkRest("http://flink"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, ""),
        (
            FromJava(
                "java.util.concurrent.ExecutionException: Job failed\n\tat a.B.c(B.java:1)\n"
                "Caused by: java.net.ConnectException: refused\n\tat a.B.c(B.java:1)"
            ),
            "ConnectException: refused",
        ),
        (Py4JError("gone"), "the JVM that ran the job is gone (Py4JError)"),
        (ConnectionResetError(), "the JVM that ran the job is gone (ConnectionResetError)"),
    ],
)
def test_await_end_returns_the_cause(error: Exception | None, says: str) -> None:
    def result() -> None:
        if error is not None:
            raise error

    client = SimpleNamespace(
        get_job_id=lambda: "a", get_job_execution_result=lambda: SimpleNamespace(result=result)
    )
    assert RunningJob(client, FlinkRest("http://flink")).await_end() == says
