"""Inside the process that holds Flink: what it reports last."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import PipelineFailed
from forebay.flink.job import JvmGone
from forebay.runtime import flink_client
from forebay.runtime.flink_client import FlinkClient
from forebay.runtime.reports import Failed, Lost, Report, decode_report


class Ended(BaseException):
    """Instead of the end of the process."""


class Jvm:
    """A JVM that has been killed, and whose end the system has not told of yet."""

    archive = None

    def __init__(self) -> None:
        self.process = self
        self.waited_for = False

    def connect(self) -> None: ...

    def wait(self) -> int:
        threading.Event().wait()
        raise AssertionError

    def await_end(self, timeout_s: float) -> None:
        self.waited_for = True


def last_words(monkeypatch: pytest.MonkeyPatch, jvm: Jvm, error: Exception) -> Report:
    def attempt(_: FlinkClient) -> Report:
        raise error

    def end(status: int) -> None:
        raise Ended

    monkeypatch.setattr(FlinkClient, "_attempt", attempt)
    monkeypatch.setattr(flink_client.os, "_exit", end)
    reports = io.BytesIO()
    client: Any = FlinkClient(jvm, reports, io.BytesIO(), Path())  # type: ignore[arg-type]
    with pytest.raises(Ended):
        client.serve()
    return decode_report(reports.getvalue())


def test_whoever_finds_the_jvm_gone_before_its_end_is_told_has_the_job_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jvm = Jvm()
    assert last_words(monkeypatch, jvm, JvmGone("the JVM is gone")) == Lost("the JVM is gone")
    assert jvm.waited_for


def test_a_job_that_failed_is_not_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    said = last_words(monkeypatch, Jvm(), PipelineFailed("a prompt that nobody can render"))
    assert said == Failed("PipelineFailed", "a prompt that nobody can render")
