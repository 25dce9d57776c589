"""A job seen through Flink's REST service: how it is ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.errors import PipelineFailed
from forebay.operators import job as module
from forebay.operators.job import end_job
from forebay.testing.clock import ManualClock


class Rest:
    """A REST service that gives its answers one after the other; the last one again and again."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.cancelled = 0

    def __call__(self, url: str, method: str = "GET", wish: object = None) -> bytes:
        if method == "PATCH":
            self.cancelled += 1
            return b""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise module._NotFound(f"{url} answered 404")
        return json.dumps({"state": answer}).encode()


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rest]:
    clock = ManualClock()

    def make(*answers: str | None) -> Rest:
        service = Rest(*answers)
        monkeypatch.setattr(module, "_ask", service)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic_s, sleep=clock.advance))
        return service

    return make


def end(**more: Any) -> str | None:
    return end_job("http://flink", "a", 5.0, **more)


def test_a_job_is_cancelled_once_and_waited_for(rest: Callable[..., Rest]) -> None:
    service = rest("RUNNING", "CANCELLING", "CANCELLING", "CANCELED")
    assert end() == "CANCELED"
    assert service.cancelled == 1


def test_a_job_that_has_ended_is_left_alone(rest: Callable[..., Rest]) -> None:
    service = rest("FINISHED")
    assert end() == "FINISHED"
    assert service.cancelled == 0


def test_a_job_that_does_not_end_is_told_of(rest: Callable[..., Rest]) -> None:
    rest("CANCELLING")
    with pytest.raises(PipelineFailed, match="does not end; it is CANCELLING"):
        end()


def test_a_job_that_may_be_on_its_way_is_waited_for(rest: Callable[..., Rest]) -> None:
    rest(None)
    assert end() is None
    assert end(unknown_s=3.0) is None
    service = rest(None, None, "CREATED", "CANCELED")
    assert end(unknown_s=3.0) == "CANCELED"
    assert service.cancelled == 1
    service = rest("RUNNING", None)
    assert end(unknown_s=3.0) is None
