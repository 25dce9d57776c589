"""A pipeline's state on a real S3 server: what is resumed, and who may write."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.clients.s3.client import Changed, S3Client, StoreAway
from forebay.clients.s3.location import S3Path
from forebay.clients.s3.lock import Fenced, HeldLock, Lock, encode_lock
from forebay.errors import SettingError
from forebay.flink.checkpoints import END_MARK, END_NOTE, HEADER, MARK, MAX_DRAINS, NEWEST_VERSION, Contents
from forebay.pipeline.fingerprint import fingerprint
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check_paths
from forebay.pipeline.resume import (
    AlreadyFinished,
    CheckpointCleaner,
    checkpoint_to_resume,
    end_orphan,
    forget,
    found_state,
)
from forebay.pipeline.s3_state_store import FENCE_KEPT_S, FENCES, PATIENCE_S, S3Store
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import (
    Completed,
    RunRecordBroken,
    RunState,
    newest_of,
    number_of,
    open_store,
)
from forebay.settings import Settings

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("object-store")]
JOB_A, JOB_B, JOB_C = "a" * 32, "b" * 32, "c" * 32


class Place:
    """A pipeline's prefix with state of earlier runs, as Flink and a run leave it."""

    def __init__(self, home: S3Path) -> None:
        self.home = home
        self.client = S3Client(home.bucket)
        self.store = S3Store(home)

    def spec(self, **changes: Any) -> PipelineSpec:
        return parse_spec(
            {
                "name": "p",
                "source": {"type": "jsonl", "path": "in.jsonl"},
                "prompt": "x",
                "sink": {"type": "jsonl", "path": f"{self.home}/out"},
                "checkpoint": {"dir": f"{self.home}/state"},
                **changes,
            }
        )

    def put(self, name: str, content: bytes = b"") -> None:
        self.client.put(f"{self.home.key}/{name}", content, replacing=None)

    def checkpoint(self, job: str, number: int) -> S3Path:
        self.put(f"{job}/chk-{number}/_metadata", HEADER.pack(MARK, NEWEST_VERSION, number))
        return self.home / job / f"chk-{number}"

    def started(self, job: str, **changes: Any) -> RunState:
        state = RunState(job=job, traits=fingerprint(self.spec()), **changes)
        self.store.write(state)
        return state

    def resumed(self) -> Any:
        again = S3Store(self.home)
        return checkpoint_to_resume(self.spec(), again, found_state(again))


@pytest.fixture
def place(store: S3Path) -> Place:
    return Place(store)


def test_record_of_one_machine_is_read_by_another(place: Place) -> None:
    assert open_store(place.home).read() is None
    state = place.started(JOB_A, parallelism=3)
    assert S3Store(place.home).read() == state
    place.put("run.json.old", b"no matter")
    assert place.resumed() is None


def test_newest_checkpoint_by_number_is_resumed(place: Place) -> None:
    place.checkpoint(JOB_A, 30)
    place.started(JOB_B, restored=f"{JOB_A}/chk-30")
    assert place.resumed() == place.home / JOB_A / "chk-30"
    for number in (40, 9, 31):  # The last written is not the newest.
        place.checkpoint(JOB_B, number)
    newest = place.resumed()
    assert newest == place.home / JOB_B / "chk-40"
    assert number_of(newest) == 40


def test_checkpoint_without_metadata_is_incomplete(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 3)
    place.put(f"{JOB_A}/chk-4/some-state", b"1234")
    place.put(f"{JOB_A}/shared/some-state", b"1234")
    found = newest_of(place.store, JOB_A)
    assert found is not None
    assert found.number == 3
    assert place.store.contents(place.home / JOB_A / "chk-4") == Contents(1, 4)


def test_end_notes_are_read(place: Place) -> None:
    assert place.store.end_notes(JOB_A) == []
    place.put(f"{JOB_A}/{END_NOTE}-1", b"one")
    place.put(f"{JOB_A}/{END_NOTE}-2", b"two")
    place.put(f"{JOB_A}/{END_MARK}")
    assert sorted(place.store.end_notes(JOB_A)) == [b"one", b"two"]


def test_unrecorded_end_is_found_by_its_mark(place: Place) -> None:
    state = place.started(JOB_A)
    assert place.resumed() is None
    place.store.write(state.model_copy(update={"completed": Completed(number=4)}))
    with pytest.raises(SettingError, match="lacks the checkpoints of job aaa"):
        place.resumed()
    place.put(f"{JOB_A}/{END_MARK}")
    with pytest.raises(AlreadyFinished):
        place.resumed()
    checkpoint = place.checkpoint(JOB_A, 5)
    assert place.resumed() == checkpoint


def test_missing_or_cut_off_checkpoint_is_named(place: Place) -> None:
    place.started(JOB_A, restored=f"{JOB_B}/chk-2")
    with pytest.raises(SettingError, match=rf"checkpoint s3://\S+/{JOB_B}/chk-2 is missing. Restore it"):
        place.resumed()
    place.put(f"{JOB_A}/chk-3/_metadata", b"Ig")
    with pytest.raises(SettingError, match="_metadata is cut off: it has 2 bytes"):
        place.resumed()


def test_unreadable_record_is_rejected(place: Place) -> None:
    place.put("run.json", b"{")
    with pytest.raises(RunRecordBroken, match=r"s3://\S+/run.json cannot be read"):
        place.store.read()
    place.client.delete(place.home.key)
    place.checkpoint(JOB_A, 1)
    with pytest.raises(SettingError, match=r"holds checkpoints but lacks run.json"):
        place.resumed()


def test_record_is_read_only_under_a_certain_lock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a suspended run would replace the record of the run that has taken over."""
    certain = iter([False, True])
    monkeypatch.setattr(HeldLock, "certain", property(lambda hold: next(certain)))
    late = S3Store(place.home, sleep=lambda seconds: place.store.write(RunState(parallelism=7)))
    with late.lock("p"):
        found = late.read()
    assert found is not None
    assert found.parallelism == 7


def test_run_elsewhere_is_detected_by_its_renewals(place: Place) -> None:
    assert not S3Store(place.home).running()
    with place.store.lock("p"):
        assert S3Store(place.home).running()
    assert not S3Store(place.home, sleep=lambda seconds: None).running()


def test_two_runs_cannot_write_one_record(place: Place) -> None:
    first, second = S3Store(place.home), S3Store(place.home)
    assert first.read() is second.read() is None
    first.write(RunState(job=JOB_A))
    with pytest.raises(Fenced, match=r"run.json was written by another run, which has taken over"):
        second.write(RunState(job=JOB_B))
    assert second.read() == first.read()
    second.write(RunState(job=JOB_B))
    with pytest.raises(Fenced):
        first.write(RunState(job=JOB_C))


def test_write_waits_for_an_unavailable_server(place: Place, store_server: Any) -> None:
    clock = ManualClock()

    def pause(seconds: float) -> None:
        clock.pause(seconds)
        if len(clock.slept_s) == 2:
            store_server.link.restore()

    waiting = S3Store(place.home, clock=clock, sleep=pause)
    waiting.read()
    store_server.link.cut()
    with pytest.raises(StoreAway):
        waiting.write(RunState(), patient=False)
    waiting.write(RunState(parallelism=7))
    assert place.store.read() == waiting.read()
    store_server.link.cut()
    clock.slept_s.extend((0.0, 0.0))
    with pytest.raises(StoreAway):
        waiting.write(RunState())
    assert sum(clock.slept_s) >= PATIENCE_S


def test_checkpoints_are_recorded_and_older_jobs_deleted(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 20)
    place.checkpoint(JOB_B, 5)
    state = place.started(JOB_C, restored=f"{JOB_A}/chk-20")
    tidy = CheckpointCleaner(place.store, JOB_C, restored)
    place.checkpoint(JOB_C, 21)
    state = tidy(state, 77)
    assert state.completed == Completed(number=21, triggered_ms=77, files=1, bytes=16)
    assert sorted(place.store.jobs()) == [JOB_A, JOB_C]
    place.checkpoint(JOB_C, 22)
    assert tidy(state, 77) is state, "no request before Flink reports another checkpoint"
    assert tidy(state, 78).completed == Completed(number=22, triggered_ms=78, files=1, bytes=16)
    assert forget(place.store, RunState()).job is None
    assert place.store.jobs() == []


def test_unavailable_server_leaves_the_record_unchanged(place: Place, store_server: Any) -> None:
    state = place.started(JOB_A)
    tidy = CheckpointCleaner(place.store, JOB_A, None)
    place.checkpoint(JOB_A, 1)
    store_server.link.cut()
    assert tidy(state, 1) is state
    store_server.link.restore()
    store_server.link.refuse(400, "ExpiredToken")
    assert tidy(state, 1) is state
    store_server.link.restore()
    assert tidy(state, 1).completed is not None


def test_next_checkpoints_of_a_silent_run_are_occupied(place: Place) -> None:
    lock = encode_lock(Lock("p", where="a machine that is gone"))
    place.put("lock", lock)
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    upload = place.client._s3.create_multipart_upload(
        Bucket=place.home.bucket, Key=f"{place.home.key}/{JOB_A}/chk-8/_metadata"
    )
    clock = ManualClock()
    with ExitStack() as open_:
        taker = S3Store(place.home, clock=clock, sleep=clock.pause)
        open_.enter_context(taker.lock("p"))
        end_orphan(taker, state)
        for number in (8, 7 + FENCES):
            with pytest.raises(Changed):
                place.put(f"{JOB_A}/chk-{number}/_metadata", b"of the job that is still active")
        with pytest.raises(place.client._s3.exceptions.NoSuchUpload):
            place.client._s3.list_parts(
                Bucket=place.home.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
        assert checkpoint_to_resume(place.spec(), taker, state) == place.home / JOB_A / "chk-7"
        taker.check_held()
        place.checkpoint(JOB_A, 7 + FENCES + 1)
        end_orphan(taker, state)
        assert not place.client.head(f"{place.home.key}/{JOB_A}/chk-{7 + FENCES + 2}/_metadata", 1)


@pytest.mark.parametrize("record", [b"", b"no JSON", None])
def test_without_a_record_every_job_is_fenced(place: Place, record: bytes | None) -> None:
    place.put("lock", encode_lock(Lock("p")))
    if record is not None:
        place.put("run.json", record)
    place.checkpoint(JOB_A, 30)
    place.checkpoint(JOB_B, 500)
    place.put(f"{JOB_C}/chk-501/some-state", b"of one that was started from checkpoint 500")
    clock = ManualClock()
    taker = S3Store(place.home, clock=clock, sleep=clock.pause)
    with taker.lock("p"):
        end_orphan(taker, found_state(taker, needed=False))
    for name in (f"{JOB_A}/chk-31", f"{JOB_B}/chk-501", f"{JOB_C}/chk-501", f"{JOB_C}/chk-502"):
        with pytest.raises(Changed):
            place.put(f"{name}/_metadata", b"of a job that is still active")


def test_checkpoints_completed_during_fencing_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("lock", encode_lock(Lock("p")))
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    occupy, late = S3Store._occupy, [20]

    def outrun(self: S3Store, *paths: S3Path) -> None:
        if late and JOB_A in str(paths[-1]) and paths[-1].name == "_metadata":
            place.checkpoint(JOB_A, late.pop())
        occupy(self, *paths)

    monkeypatch.setattr(S3Store, "_occupy", outrun)
    taken_over(place, state, ManualClock())
    with pytest.raises(Changed):
        place.put(f"{JOB_A}/chk-{20 + FENCES}/_metadata", b"of the job that is still active")


def taken_over(place: Place, state: RunState, clock: ManualClock) -> S3Store:
    """Take over the job of `state`, as a run does, and end."""
    taker = S3Store(place.home, clock=clock, sleep=clock.pause)
    with taker.lock("p"):
        end_orphan(taker, state)
    return taker


def test_fences_outlive_the_fenced_job(place: Place) -> None:
    """For as long as a machine may be suspended, even after `--fresh`."""
    place.put("lock", encode_lock(Lock("p")))
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    clock = ManualClock(wall_ms=int(time.time() * 1000))
    taker = taken_over(place, state, clock)
    taker.read()
    forget(taker, RunState())
    assert not taker.checkpoints(JOB_A)
    for name in ("chk-8/_metadata", f"chk-{7 + FENCES}/_metadata", "drain-0", f"drain-{MAX_DRAINS - 1}"):
        with pytest.raises(Changed):
            place.put(f"{JOB_A}/{name}", b"of the job that is still active")
    clock.advance(FENCE_KEPT_S + 60)
    taker.delete(JOB_A)
    assert list(taker.jobs()) == []


def test_drain_in_progress_is_fenced(place: Place) -> None:
    place.put("lock", encode_lock(Lock("p")))
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    place.put(f"{JOB_A}/drain-0/savepoint-aaaaaa-1/")
    taken_over(place, state, ManualClock())
    with pytest.raises(Changed):
        place.put(f"{JOB_A}/drain-0/savepoint-aaaaaa-1/_metadata", b"of the job that is still active")
    assert place.resumed() == place.home / JOB_A / "chk-7"


def test_drain_completed_before_a_takeover_is_resumed(place: Place) -> None:
    place.put("lock", encode_lock(Lock("p")))
    state = place.started(JOB_A)
    name = f"{JOB_A}/drain-1/savepoint-aaaaaa-1"
    place.put(f"{name}/_metadata", HEADER.pack(MARK, NEWEST_VERSION, 9))
    taken_over(place, state, ManualClock())
    assert place.resumed() == place.home / JOB_A / "drain-1" / "savepoint-aaaaaa-1"
    with pytest.raises(Changed):
        place.put(f"{JOB_A}/chk-10/_metadata", b"of the job that is still active")


@pytest.mark.parametrize("folder", ["chk-8", "chk-12", "drain-0/savepoint-aaaaaa-1"])
def test_uploads_are_aborted_also_on_minio(
    place: Place, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MinIO lists uploads of a whole key only, not below a prefix."""
    place.put("lock", encode_lock(Lock("p")))
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    place.put(f"{JOB_A}/{folder}/some-state", b"1")
    s3, key = place.client._s3, f"{place.home.key}/{JOB_A}/{folder}/_metadata"
    upload = s3.create_multipart_upload(Bucket=place.home.bucket, Key=key)["UploadId"]
    of_prefix = S3Client.abort_uploads_of
    monkeypatch.setattr(
        S3Client, "abort_uploads_of", lambda s3, key: 0 if key.endswith("/") else of_prefix(s3, key)
    )
    taken_over(place, state, ManualClock())
    with pytest.raises(s3.exceptions.NoSuchUpload):
        s3.list_parts(Bucket=place.home.bucket, Key=key, UploadId=upload)


def test_own_record_is_recognised_after_a_lost_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put = S3Client.put

    def unanswered(self: S3Client, key: str, content: bytes, *, replacing: str | None) -> str:
        put(self, key, content, replacing=replacing)
        raise StoreAway("no answer")

    with place.store.lock("p"):
        place.store.write(RunState(job=JOB_A))
        with monkeypatch.context() as patched:
            patched.setattr(S3Client, "put", unanswered)
            with pytest.raises(StoreAway):
                place.store.write(RunState(job=JOB_A, parallelism=2), patient=False)
        place.store.write(RunState(job=JOB_A, parallelism=3))
    found = S3Store(place.home).read()
    assert found is not None
    assert found.parallelism == 3


def test_record_is_read_again_if_the_server_is_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    get, failures = S3Client.get, [StoreAway("no answer")]

    def away_once(self: S3Client, key: str, most_bytes: int = 1 << 20) -> Any:
        if failures:
            raise failures.pop()
        return get(self, key, most_bytes)

    clock = ManualClock()
    store = S3Store(place.home, clock=clock, sleep=clock.pause)
    with store.lock("p"):
        store.write(RunState(job=JOB_A))
        store._record = None  # The answer to the write was lost.
        monkeypatch.setattr(S3Client, "get", away_once)
        store.write(RunState(job=JOB_A, parallelism=3))
    found = S3Store(place.home).read()
    assert found is not None
    assert found.parallelism == 3


def test_late_writer_that_lost_is_fenced_next(place: Place) -> None:
    """The run that holds the lock finds the late record and stops; the next run fences the job in it."""
    late = S3Store(place.home)
    late.read()
    with place.store.lock("p"):
        place.store.read()
        late.write(RunState(job=JOB_B))
        with pytest.raises(Fenced):
            place.store.write(RunState(job=JOB_C))
    again = S3Store(place.home)
    with again.lock("p"):
        end_orphan(again, found_state(again))
    with pytest.raises(Changed):
        place.put(f"{JOB_B}/chk-1/_metadata", b"of the job that is still active")


def test_fence_continues_numbers_from_the_restored_checkpoint(place: Place) -> None:
    place.put("lock", encode_lock(Lock("p")))
    place.checkpoint(JOB_A, 500)
    state = place.started(JOB_B, restored=f"{JOB_A}/chk-500")
    clock = ManualClock()
    taker = S3Store(place.home, clock=clock, sleep=clock.pause)
    with taker.lock("p"):
        end_orphan(taker, state)
    with pytest.raises(Changed):
        place.put(f"{JOB_B}/chk-501/_metadata", b"of the job that goes on")
    assert place.resumed() == place.home / JOB_A / "chk-500"


def test_run_that_released_its_lease_is_not_fenced(place: Place) -> None:
    state = place.started(JOB_A)
    place.checkpoint(JOB_A, 7)
    for _ in range(2):
        again = S3Store(place.home)
        with again.lock("p"):
            end_orphan(again, state)
    place.checkpoint(JOB_A, 8)
    assert place.resumed() == place.home / JOB_A / "chk-8"


def test_missing_bucket_is_named_with_its_setting(store: S3Path, tmp_path: Any) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    place = Place(store)
    source = {"type": "jsonl", "path": str(tmp_path / "in.jsonl")}
    settings = Settings(tmp_path, tmp_path)
    check_paths(Plan(place.spec(source=source), settings))
    for key, wrong in {
        "checkpoint.dir": {"checkpoint": {"dir": "s3://no-such-bucket/p"}},
        "sink.path": {"sink": {"type": "jsonl", "path": "s3://no-such-bucket/p"}},
    }.items():
        with pytest.raises(SettingError, match=f"{key}: bucket no-such-bucket at .* does not exist"):
            check_paths(Plan(place.spec(source=source, **wrong), settings), make=False)
