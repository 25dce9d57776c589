"""Runs on a real Flink."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import PipelineFailed, SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = pytest.mark.flink


@pytest.mark.slow
def test_results_are_committed_long_before_the_interval(pipelines: Any) -> None:
    folder = pipelines.folder / "in"
    folder.mkdir()
    spec = pipelines.spec(
        source={"type": "jsonl", "path": "in", "follow": True},
        prompt="{{ text }}",
        checkpoint={"interval_s": 3600.0},
    )

    def add(number: int) -> None:
        pipelines.write({"text": f"event {number}"}, name="new")
        (pipelines.folder / "new").rename(folder / f"{number}.jsonl")

    def committed(count: int) -> bool:
        if len(pipelines.lines()) == count:
            return True
        if not (folder / f"{len(pipelines.lines())}.jsonl").exists():
            # One commit after the other.
            add(len(pipelines.lines()))
        return False

    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:
        pipelines.interrupt(spec, replica.url, lambda: committed(3))
        pipelines.interrupt(spec, replica.url, lambda: committed(5))
    texts = [line["fields"]["text"] for line in pipelines.lines()]
    assert sorted(texts) == [f"event {n}" for n in range(5)]
    # A job has one file, however often it commits.
    assert len(list((pipelines.folder / "out").glob("part-*.jsonl"))) == 2


def first_ten(request_id: str) -> float:
    return 0.01 if int(request_id.rpartition("@")[2]) <= 10 else 600.0


def test_a_folder_may_have_any_name(pipelines: Any) -> None:
    odd = pipelines.in_folder("My files, é #1 100%20")
    odd.write(*({"text": f"event {n}"} for n in range(20)))
    spec = odd.spec(prompt="{{ text }}", capacity=4)
    with ReplicaThread(ReplicaScript(delay=first_ten)) as replica:
        odd.interrupt(spec, replica.url, lambda: len(odd.lines()) == 10)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:
        assert odd.run(spec, replica.url).results == 10
    assert sorted(int(line["position"].rpartition("@")[2]) for line in odd.lines()) == list(range(1, 21))
    assert [path.name for path in odd.folder.parent.iterdir() if "files" in path.name] == [odd.folder.name]


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
        ({"taskmanager.numberOfTaskSlots": 0}, PipelineFailed, "Flink refused the job: .*slots"),
    ],
)
def test_rejected_flink_options_are_one_sentence(
    pipelines: Any, flink: dict[str, Any], kind: type[Exception], says: str
) -> None:
    pipelines.write({"text": "a"})
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica, pytest.raises(kind, match=says) as caught:
        pipelines.run(pipelines.spec(flink=flink), replica.url)
    assert "\n" not in str(caught.value)
