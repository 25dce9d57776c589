"""Runs of an inference pipeline on an embedded cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import LaunchError


@pytest.fixture
def make_runs(tmp_path: Path, flink_logs: Path) -> Iterator[Callable[..., Any]]:
    """Makes `Runs` in a folder of this test; cancels what a failed test left running."""
    from tests.harness.operators import Runs

    made: list[Runs] = []

    def make(**settings: Any) -> Runs:
        made.append(Runs(tmp_path / f"runs-{len(made)}", log_dir=flink_logs, **settings))
        return made[-1]

    yield make
    for runs in made:
        for job in runs.jobs:
            if job.ended() is None:
                with suppress(LaunchError):
                    job.cancel()
