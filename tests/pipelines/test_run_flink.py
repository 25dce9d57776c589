"""Runs on a real Flink."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import PipelineFailed, SettingError
from forebay.testing.delays import Fixed
from forebay.testing.replica import ReplicaScript, ReplicaThread

pytestmark = [pytest.mark.flink, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("flink", "kind", "says"),
    [
        # At the environment, when the job is translated, and when it is submitted.
        (
            {"restart-strategy.exponential-delay.attempts-before-reset-backoff": "x"},
            SettingError,
            "found 'x'",
        ),
        ({"python.fn-execution.bundle.size": "many"}, SettingError, "bundle.size, found 'many'"),
        ({"taskmanager.memory.network.min": "soon"}, SettingError, "network.min, found 'soon'"),
        ({"taskmanager.numberOfTaskSlots": 0}, PipelineFailed, "Flink did not take the job: .*slots"),
    ],
)
def test_options_that_flink_does_not_take_are_one_sentence(
    pipelines: Any, flink: dict[str, Any], kind: type[Exception], says: str
) -> None:
    pipelines.write({"text": "a"})
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica, pytest.raises(kind, match=says) as caught:
        pipelines.run(pipelines.spec(flink=flink), replica.url)
    assert "\n" not in str(caught.value)
