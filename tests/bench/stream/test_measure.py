"""A pipeline measured end to end, against an engine with known times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.bench.load.schedules import Constant
from forebay.bench.stream import measure
from forebay.bench.stream.events import EventLoad, StreamOptions
from forebay.bench.stream.figures import RESULT_STAGES, STAGES, stream_figures
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.pipeline import state_folder
from forebay.bench.stream.records import MOMENTS, StreamRun
from forebay.bench.stream.verdict import judge_stream
from forebay.clients.s3.client import S3Client, StoreRefused
from forebay.clients.s3.location import S3Path
from forebay.errors import LaunchError, SettingError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

pytestmark = pytest.mark.xdist_group("bench-stream")
CALL_S = 0.2
PIPELINE: dict[str, Any] = {
    "name": "measured",
    "source": {"type": "generator"},
    "prompt": "About? {{ text }}",
    "sink": {"type": "jsonl", "path": "never-written"},
    "event_time": {"out_of_orderness_s": 0.5},
    "checkpoint": {"interval_s": 0.5},
}


@pytest.fixture(scope="module")
def run() -> Iterator[StreamRun]:
    with ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))) as replica:
        options = StreamOptions(
            pipeline=PIPELINE,
            engine=(replica.url,),
            load=EventLoad(schedule=Constant(20.0), events=60),
            warm_events=5,
        )
        with StreamSession(options) as session:
            session.warm_up()
            yield session.measure(options.load)


@pytest.mark.slow
@pytest.mark.flink
def test_every_event_has_all_times_in_order(run: StreamRun) -> None:
    assert run.complete
    assert [event.index for event in run.events] == list(range(60))
    for event in run.events:
        moments = [getattr(event, name) for name in MOMENTS]
        assert all(after - before >= -run.resolution_s for before, after in pairwise(moments)), event
        assert (event.results, event.attempts, event.error) == (1, 1, None)
    assert run.strangers == 0


@pytest.mark.slow
@pytest.mark.flink
def test_known_engine_time_is_attributed_to_its_stage(run: StreamRun) -> None:
    figures = stream_figures(run)
    assert figures.stages["prefill"].minimum >= CALL_S - 0.001
    assert set(figures.stages) == set(STAGES)
    assert figures.latency["answered"].minimum >= CALL_S
    assert figures.offered_per_s == pytest.approx(60 / (59 / 20))


@pytest.mark.slow
@pytest.mark.flink
def test_flink_and_the_engine_show_what_they_do(run: StreamRun) -> None:
    figures = stream_figures(run)
    assert run.checkpoints
    assert figures.checkpoint["state_bytes"].maximum > 0
    names = set(figures.samples)
    assert {"in_flight", "pending", "running", "run_memory_mb", "feed_memory_mb", "engine_cores"} <= names
    assert figures.watermark_delay is not None
    # Half a second of patience with late events, and the calls that are awaited.
    assert figures.watermark_delay.minimum >= 0.5


@pytest.mark.slow
@pytest.mark.flink
def test_nothing_is_lost_and_the_clocks_agree(run: StreamRun) -> None:
    # The others depend on what else runs on this machine.
    wrong = [words for words in judge_stream(run).reasons if "events have" in words or "clocks" in words]
    assert wrong == []


@pytest.mark.long
@pytest.mark.flink
def test_events_without_the_prompts_fields_are_reported_at_once() -> None:
    document = {**PIPELINE, "prompt": "About? {{ headline }}"}
    with ReplicaProcess(ReplicaScript()) as replica:
        options = StreamOptions(pipeline=document, engine=(replica.url,))
        with pytest.raises(SettingError, match=r"1 of 1 events became dead letters.*headline.*--data"):
            StreamSession(options).__enter__()


@pytest.mark.long
@pytest.mark.flink
def test_summaries_of_windows_are_followed_from_their_end_to_their_commit() -> None:
    document = {name: PIPELINE[name] for name in PIPELINE if name != "prompt"} | {
        "key": "{{ user[-1:] | int % 2 }}",
        "application": {"type": "summary", "size_s": 1},
        "event_time": {"out_of_orderness_s": 0.2},
    }
    load = EventLoad(schedule=Constant(20.0), events=80)
    with ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))) as replica:
        options = StreamOptions(pipeline=document, engine=(replica.url,), load=load, warm_events=5)
        with StreamSession(options) as session:
            session.warm_up()
            run = session.measure(load)
    found = run.results or ()
    # Four seconds have three whole windows at least, each with both keys.
    assert len(found) >= 6
    assert [each.expected for each in found] == [each.stands_for for each in found]
    assert {each.results for each in found} == {1}
    for each in found:
        moments = [moment for name in MOMENTS if (moment := getattr(each, name)) is not None]
        # No call of its own: the journal had the answer, or it was asked for before the window's end.
        assert each.attempts == 0 or len(moments) == len(MOMENTS)
        assert all(after - before >= -run.resolution_s for before, after in pairwise(moments)), each
    figures = stream_figures(run)
    assert set(figures.stages) == set(RESULT_STAGES)
    assert figures.stages["prefill"].minimum >= CALL_S - 0.001
    assert figures.stages["window"].minimum >= 0.2
    assert (run.strangers, figures.lost, figures.doubled, figures.miscounted) == (0, 0, 0, 0)
    assert run.left_open > 0


def test_a_load_in_which_no_window_ends_is_refused() -> None:
    document = {name: PIPELINE[name] for name in PIPELINE if name != "prompt"} | {
        "key": "{{ user }}",
        "application": {"type": "summary", "size_s": 60},
    }
    options = StreamOptions(pipeline=document, load=EventLoad(schedule=Constant(20.0), events=100))
    with pytest.raises(SettingError, match=r"no window may end in a load of 4.95 s.*--seconds 67 or more"):
        StreamSession(options).__enter__()


@pytest.mark.long
@pytest.mark.flink
@pytest.mark.xdist_group("object-store")
def test_state_in_an_object_store_changes_no_figure_and_is_deleted(store: Any, s3_plugin: Path) -> None:
    with ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))) as replica:
        load = EventLoad(schedule=Constant(20.0), events=20)
        options = StreamOptions(
            pipeline=PIPELINE, engine=(replica.url,), load=load, warm_events=2, state=store
        )
        with StreamSession(options) as session:
            session.warm_up()
            assert S3Client(store.bucket).entries(store.key)
            run = session.measure(load)
    assert run.complete
    assert all(event.results == 1 for event in run.events)
    assert any(each.completed and each.state_bytes > 0 for each in run.checkpoints)
    assert run.asked["pipeline"]["state"] == "s3"
    assert S3Client(store.bucket).entries(store.key) == []


@pytest.mark.heavy
def test_a_missing_bucket_is_reported_before_the_pipeline_starts(store: Any) -> None:
    with ReplicaProcess(ReplicaScript()) as replica:
        options = StreamOptions(pipeline=PIPELINE, engine=(replica.url,), state=S3Path("no-such-bucket", "p"))
        with pytest.raises(SettingError, match="no-such-bucket"):
            StreamSession(options).__enter__()


@pytest.fixture
def undeletable(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> S3Path:
    """A prefix in a bucket in which nothing can be deleted."""

    def refused(client: S3Client, prefix: str) -> None:
        raise StoreRefused("these keys may not delete")

    monkeypatch.setattr(S3Client, "delete", refused)
    return store


@pytest.mark.heavy
def test_a_start_that_fails_is_not_hidden_by_a_store_that_stays(
    undeletable: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def entered(*arguments: object, **more: object) -> Iterator[Any]:
        yield SimpleNamespace(url="http://feed")

    def broken(*_: object) -> None:
        raise LaunchError("the pipeline did not start")

    for name in ("Engines", "FeedProcess"):
        monkeypatch.setattr(measure, name, entered)
    monkeypatch.setattr(measure, "Places", broken)
    notes: list[str] = []
    with pytest.raises(LaunchError, match="the pipeline did not start"):
        StreamSession(StreamOptions(pipeline=PIPELINE, state=undeletable), note=notes.append).__enter__()
    assert notes[-1].endswith("stays: these keys may not delete")


def test_a_measurement_that_fails_is_not_hidden_by_a_store_that_stays(undeletable: S3Path) -> None:
    notes: list[str] = []

    def opened() -> StreamSession:
        session = StreamSession(StreamOptions(pipeline=PIPELINE), note=notes.append)
        stands_in: Any = SimpleNamespace(stop=lambda: None, look=lambda: None, doubles=0)
        session.run = session._book = stands_in
        session._opened.enter_context(state_folder(undeletable, notes.append))
        return session

    try:
        raise LaunchError("it failed in the middle")
    except LaunchError as error:
        opened().__exit__(type(error), error, error.__traceback__)
    assert notes[-1].endswith("stays: these keys may not delete")
    with pytest.raises(StoreRefused):
        opened().__exit__(None, None, None)
