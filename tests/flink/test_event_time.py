"""Event time behind the operator with unevenly distributed records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

pytestmark = pytest.mark.flink


def test_windows_close_if_a_subtask_gets_no_record(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(event_time=True, window_ms=1000, follow=True, keyed=True)
    runs.feed({"n": n, "text": f"event {n}", "key": "the only one", "at": n * 20} for n in range(160))
    job = runs.start(parallelism=2)
    # The input does not end: what closes the windows is event time, in both subtasks.
    wait_until(lambda: len(runs.results()) >= 3)
    runs.stop(job)
    assert [window["count"] for window in runs.results()] == [50, 50, 50]
