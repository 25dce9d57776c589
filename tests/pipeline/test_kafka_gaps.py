"""A real node no longer has records that a pipeline should read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import delete_before, delete_topic, make_topic, produce

from forebay.connectors.kafka.admin import Place, kafka_admin
from forebay.errors import PipelineFailed
from forebay.pipeline.messages import JobLost
from forebay.pipeline.state_store import read_state
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = [pytest.mark.flink, pytest.mark.slow]


class Scene:
    """A pipeline over one topic of one partition."""

    def __init__(self, node: Any, topic: Callable[..., str], pipelines: Any, url: str) -> None:
        self.node, self.pipelines, self.url = node, pipelines, url
        self.topic = topic(1)

    def write(self, *texts: str) -> None:
        produce(self.node.bootstrap, self.topic, [{"value": orjson.dumps({"text": text})} for text in texts])

    def spec(self, **source: Any) -> Any:
        access = {"type": "kafka", "bootstrap": self.node.bootstrap, "topics": [self.topic]}
        return self.pipelines.spec(source={**access, **source}, prompt="{{ text }}")

    def ids(self) -> list[str]:
        return sorted(line["id"] for line in self.pipelines.lines())

    def run(self, count: int, **source: Any) -> Any:
        """Run until `count` results are written, then interrupt; return the last snapshot."""
        return self.pipelines.interrupt(self.spec(**source), self.url, lambda: len(self.ids()) >= count)

    def recreate(self) -> None:
        delete_topic(self.node.bootstrap, self.topic)
        make_topic(self.node.bootstrap, self.topic)


@pytest.fixture
def scene(node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any) -> Any:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        yield Scene(node, topic, pipelines, replica.url)


def test_resume_names_records_deleted_unread(scene: Scene) -> None:
    scene.write(*"abc")
    scene.run(3)
    scene.write(*"defgh")
    delete_before(scene.node.bootstrap, scene.topic, 6)
    with pytest.raises(PipelineFailed) as failed:
        scene.run(5)
    words = str(failed.value)
    assert f"{scene.topic}/0: offsets 3 to 5 were deleted unread (3 records at most)" in words
    assert "on_gap: continue" in words
    last = scene.run(5, on_gap="continue")
    assert scene.ids() == [f"{scene.topic}/0@{offset}" for offset in (0, 1, 2, 6, 7)]
    assert last.skipped_records == 3
    assert last.gaps == (f"{scene.topic}/0: offsets 3 to 5 were deleted unread (3 records at most)",)
    # The place behind the gap is in the next checkpoint, and is resumed like any other.
    scene.write("i")
    assert scene.run(6).gaps == ()
    assert scene.ids()[-1] == f"{scene.topic}/0@8"


def test_gap_right_after_a_skipped_one_is_named(scene: Scene) -> None:
    """The reader has read nothing since: its position is not in the checkpoint."""
    scene.write(*"abc")
    scene.run(3)
    scene.write("d")
    delete_before(scene.node.bootstrap, scene.topic, 4)
    folder = Path(scene.spec().checkpoint.dir)
    before = read_state(folder)
    assert before is not None

    def completed() -> bool:
        state = read_state(folder)
        return state is not None and state.job != before.job and state.completed is not None

    last = scene.pipelines.interrupt(scene.spec(on_gap="continue"), scene.url, completed)
    assert [gap.partition(": ")[2] for gap in last.gaps] == [
        "offsets 3 to 3 were deleted unread (one record at most)"
    ]
    scene.write(*"ef")
    delete_before(scene.node.bootstrap, scene.topic, 5)
    with pytest.raises(PipelineFailed, match="offsets 4 to 4 were deleted unread"):
        scene.run(4)
    assert scene.run(4, on_gap="continue").skipped_records == 1
    assert scene.ids() == [f"{scene.topic}/0@{offset}" for offset in (0, 1, 2, 5)]


def test_records_before_a_gap_are_not_lost(scene: Scene) -> None:
    """The checkpoint's requests, and its records in flight to the operator, outlive the source's state."""
    scene.write(*(f"e{n}" for n in range(100)))
    busy = {"max.poll.records": 10}
    spec = scene.spec(properties=busy).model_copy(update={"capacity": 2})
    with ReplicaThread(ReplicaScript(delay=Fixed(0.2))) as slow:
        scene.pipelines.interrupt(spec, slow.url, lambda: len(scene.ids()) >= 4)
    scene.write(*(f"f{n}" for n in range(10)))
    delete_before(scene.node.bootstrap, scene.topic, 105)
    wanted = {f"{scene.topic}/0@{offset}" for offset in range(105, 110)}
    last = scene.pipelines.interrupt(
        scene.spec(properties=busy, on_gap="continue"), scene.url, lambda: wanted <= set(scene.ids())
    )
    (gap,) = last.gaps
    first = 105 - last.skipped_records
    assert f"offsets {first} to 104 were deleted" in gap
    assert 4 < first <= 100
    read = [f"{scene.topic}/0@{offset}" for offset in (*range(first), *range(105, 110))]
    assert scene.ids() == sorted(read)


def test_recreated_topic_gives_other_ids(scene: Scene) -> None:
    scene.write(*"abc")
    scene.run(3)
    scene.recreate()
    scene.write(*"vwxyz")
    with pytest.raises(PipelineFailed, match="the topic was deleted and created again"):
        scene.run(8)
    last = scene.run(8, on_gap="continue")
    assert scene.ids() == [
        *(f"{scene.topic}/0@{offset}" for offset in range(3)),
        *(f"{scene.topic}~2/0@{offset}" for offset in range(5)),
    ]
    assert len(last.gaps) == 1
    assert last.skipped_records == 0


def test_offsets_without_records_are_not_a_gap(scene: Scene) -> None:
    """A topic's first offsets may be gone before the first start, and a transaction marker has an offset."""
    scene.write(*"abc")
    delete_before(scene.node.bootstrap, scene.topic, 2)
    scene.run(1, start="earliest")
    value = {"value": b'{"text": "t"}'}
    produce(scene.node.bootstrap, scene.topic, [value], transaction=f"{scene.topic}-t", commit=False)
    produce(scene.node.bootstrap, scene.topic, [value], transaction=f"{scene.topic}-t")
    assert scene.run(2).gaps == ()
    assert scene.ids() == [f"{scene.topic}/0@{offset}" for offset in (2, 5)]


def test_deleted_transaction_marker_is_not_a_gap(scene: Scene) -> None:
    value = {"value": b'{"text": "t"}'}
    produce(scene.node.bootstrap, scene.topic, [value] * 3, transaction=f"{scene.topic}-t")
    spec = scene.spec()

    def passed() -> bool:
        with kafka_admin(spec.source.cluster()) as admin:
            # All tests share the group, each with a topic of its own.
            return Place(scene.topic, 0, 4) in admin.committed(spec.source.group_of(spec.name))

    scene.pipelines.interrupt(spec, scene.url, passed)
    delete_before(scene.node.bootstrap, scene.topic, 4)
    scene.write("the next")
    assert scene.run(4).gaps == ()
    assert scene.ids() == [f"{scene.topic}/0@{offset}" for offset in (0, 1, 2, 4)]


def test_groups_missing_next_record_is_a_gap(scene: Scene) -> None:
    scene.write(*"abcd")
    spec = scene.spec()
    with kafka_admin(spec.source.cluster()) as admin:
        admin.commit(spec.source.group_of(spec.name), [Place(scene.topic, 0, 1)])
    delete_before(scene.node.bootstrap, scene.topic, 3)
    with pytest.raises(PipelineFailed, match="offsets 1 to 2 were deleted unread"):
        scene.run(1)
    assert scene.run(1, on_gap="continue").skipped_records == 2
    assert scene.ids() == [f"{scene.topic}/0@3"]


def test_job_that_falls_behind_the_first_record_is_stopped(scene: Scene) -> None:
    """A reader that waits for the engine loses its position: it must not continue at the oldest record."""
    slow = {"properties": {"max.poll.records": 1, "fetch.max.bytes": 1, "max.partition.fetch.bytes": 1}}
    scene.write(*(f"{n} {'x' * 10_000}" for n in range(200)))
    spec = scene.spec(**slow).model_copy(update={"capacity": 1})
    deleted = []

    def watch(now: Any) -> None:
        if now.state == "RUNNING" and scene.ids() and not deleted:
            delete_before(scene.node.bootstrap, scene.topic, 200)
            scene.write("the next")
            deleted.append(now)

    with ReplicaThread(ReplicaScript(delay=Fixed(0.3))) as engine:
        with pytest.raises(JobLost, match=r"Kafka no longer has the next record.*offset=\d+"):
            scene.pipelines.run(spec, engine.url, watch=watch)
        with pytest.raises(PipelineFailed, match=r"offsets \d+ to 199 were deleted unread"):
            scene.pipelines.run(spec, engine.url)
    assert f"{scene.topic}/0@200" not in scene.ids()


def test_topic_recreated_under_a_running_job(scene: Scene) -> None:
    """The run restarts Flink, reads the new topic from its first record, and reports that."""
    scene.write(*"abc")
    again = []

    def enough() -> bool:
        found = scene.ids()
        if len(found) == 3 and not again:
            again.append(True)
            scene.recreate()
            # As many as before: Kafka's client would read a longer topic at the old offset.
            scene.write(*"xyz")
        return len(found) >= 6

    last = scene.pipelines.interrupt(scene.spec(on_gap="continue"), scene.url, enough, in_process=False)
    assert scene.ids()[3:] == [f"{scene.topic}~2/0@{offset}" for offset in range(3)]
    assert len(last.gaps) == len(last.resumes) == 1
