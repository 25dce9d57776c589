"""Run a pipeline to its end: check the engine, resume from the newest checkpoint, watch the job."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from forebay.connectors.sinks import committed_parts, count_lines
from forebay.engine.launch.processes import is_same, kill, wait_gone
from forebay.engine.probe import list_models
from forebay.errors import EngineError, LaunchError, PipelineFailed, SettingError
from forebay.operators.environment import FlinkConfig, Restart, flink_environment, newest_checkpoint
from forebay.operators.job import RunningJob, free_port, submit
from forebay.operators.jvm import jvm_process
from forebay.pipelines.spec import JsonlSink, PipelineSpec, fingerprint
from forebay.pipelines.streams import build
from forebay.settings import Settings, read_secret

POLL_S = 0.5
CALLS_PER_BUNDLE = 16
"""In process mode a checkpoint waits for the bundle in hand, and with all slots taken each event of the
bundle waits for one: a bundle of a sixteenth of the slots takes a sixteenth of a call."""
ORPHAN_S = 30.0
JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A running pipeline at one moment; latencies in seconds over the last half minute."""

    elapsed_s: float
    state: str
    accepted: int = 0
    results: int = 0
    dead_letters: int = 0
    in_flight: int = 0
    pending: int = 0
    retries: int = 0
    reissued: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0
    engine_p50_s: float = 0.0
    restarts: int = 0


Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How this run differs from what the file says. `fresh` forgets the pipeline's checkpoints."""

    engine_url: str
    fresh: bool = False
    cluster: str | None = None


def run_pipeline(
    spec: PipelineSpec, options: RunOptions, settings: Settings, watch: Watch = lambda _: None
) -> Snapshot:
    """Run `spec` until it ends; blocks. Returns the last snapshot.

    Resumes from the newest complete checkpoint unless `fresh`. Interrupted (KeyboardInterrupt), the job is
    cancelled and its checkpoints stay. Raises `SettingError` before anything starts where the engine does not
    serve the model, the pipeline is running already or has finished, and `PipelineFailed` where Flink gave
    the job up.
    """
    model = served_model(spec, options.engine_url)
    home = Path(spec.checkpoint.dir)
    with _held(home, spec.name):
        _end_orphan(home)
        restore_from = _prepare(spec, home, fresh=options.fresh)
        port = free_port()
        local = {"rest.port": str(port), "rest.bind-port": str(port)}
        config = FlinkConfig(
            mode=spec.mode,
            parallelism=spec.parallelism,
            bundle_size=max(1, spec.capacity // CALLS_PER_BUNDLE),
            checkpoint_dir=home,
            checkpoint_interval_s=spec.checkpoint.interval_s,
            restore_from=restore_from,
            restart=Restart(attempts=10, delay_s=1.0, max_delay_s=30.0),
            cluster=options.cluster,
            log_dir=settings.run / "flink",
            options={
                **({} if options.cluster else local),
                "execution.checkpointing.timeout": f"{round(spec.checkpoint.timeout_s * 1000)} ms",
                **{key: _flink_value(value) for key, value in spec.flink.items()},
            },
        )
        env = flink_environment(config)
        build(spec, env, engine_url=options.engine_url, model=model)
        _note(home, spec, finished=False, submitted_s=time.time(), jvm=jvm_process())
        job = submit(env, spec.name, f"http://{options.cluster or f'localhost:{port}'}")
        written = _Written(spec)
        last = written.since(_watch_until_end(job, watch))
        watch(last)
        _note(home, spec, finished=True)
        return last


def served_model(spec: PipelineSpec, url: str) -> str:
    """The name of the model to ask for, checked against what the engine serves.

    Raises `SettingError` where the engine cannot be asked or does not serve it.
    """
    secret = spec.engine.secret()
    try:
        served = asyncio.run(list_models(url, api_key=None if secret is None else read_secret(secret)))
    except EngineError as error:
        raise SettingError(f"engine.url: the engine cannot be asked what it serves: {error}") from None
    names = [model.name for model in served]
    if spec.engine.model is None:
        if len(names) != 1:
            raise SettingError(f"engine.model: expected a name, for the engine serves {', '.join(names)}")
        return names[0]
    if spec.engine.model not in names:
        raise SettingError(
            f"engine.model: the engine at {url} does not serve {spec.engine.model!r}; "
            f"it serves {', '.join(names) or 'nothing'}"
        )
    return spec.engine.model


def _prepare(spec: PipelineSpec, home: Path, *, fresh: bool) -> Path | None:
    """The checkpoint to resume from. `fresh` deletes older ones: a crash must not bring them back."""
    if fresh:
        for path in home.iterdir():
            if JOB_DIRECTORY.fullmatch(path.name):
                shutil.rmtree(path)
        _note(home, spec, finished=False)
        return None
    noted = _noted(home)
    newest = newest_checkpoint(home)
    if noted.get("finished") or _ended_unnoted(spec, noted, newest):
        raise SettingError(
            f"pipeline {spec.name!r} has finished: its results are in the sink. Run it again from the "
            f"beginning with --fresh"
        )
    if newest is not None and noted.get("mode", spec.mode) != spec.mode:
        raise SettingError(
            f"mode: expected {noted['mode']}, as in the checkpoint, found {spec.mode}; the modes cannot read "
            f"each other's state (--fresh starts over)"
        )
    if newest is not None and spec.ordering == "key" and noted.get("shards", spec.shards) != spec.shards:
        raise SettingError(
            f"shards: expected {noted['shards']}, as in the checkpoint, found {spec.shards}; order within a "
            f"key cannot be kept across a change (--fresh starts over)"
        )
    return newest


def _ended_unnoted(spec: PipelineSpec, noted: dict[str, Any], newest: Path | None) -> bool:
    """Whether the last run came to its end but was killed before it could note that.

    Flink deletes a job's checkpoints when it finishes; what is left then are older ones, of a run before. A
    run that has committed something and has no checkpoint can only have finished.
    """
    submitted_s = noted.get("submitted_s")
    if submitted_s is None or (newest and (newest / "_metadata").stat().st_mtime > submitted_s):
        return False
    paths = [spec.dead_letters.path, *([spec.sink.path] if isinstance(spec.sink, JsonlSink) else [])]
    # What a restore commits was written before the run began.
    return any(part.stat().st_mtime > submitted_s for path in paths for part in committed_parts(Path(path)))


def _end_orphan(home: Path) -> None:
    """Make sure that the last run's JVM is gone.

    Left behind by a killed command it ends by itself, but until then it may complete a checkpoint and commit
    results that this run would give again.
    """
    noted = _noted(home).get("jvm")
    if not noted or not is_same(*noted):
        return
    try:
        orphan = {psutil.Process(noted[0])}
    except psutil.NoSuchProcess:
        return
    kill(orphan)
    if wait_gone(orphan, ORPHAN_S):
        raise PipelineFailed(f"the JVM of an earlier run (process {noted[0]}) cannot be ended")


def _watch_until_end(job: RunningJob, watch: Watch) -> Snapshot:
    started_s = time.monotonic()
    last = Snapshot(0.0, "CREATED")
    try:
        while (cause := job.ended()) is None:
            time.sleep(POLL_S)
            # A service that does not answer is one that is ending with its job; the next round will tell.
            with suppress(LaunchError):
                last = _snapshot(job, last, time.monotonic() - started_s)
                watch(last)
    except KeyboardInterrupt:
        with suppress(LaunchError):
            job.cancel()
        raise
    if cause:
        raise PipelineFailed(f"Flink gave the job up: {cause}")
    return replace(last, state="FINISHED", elapsed_s=time.monotonic() - started_s)


class _Written:
    """Counts what a run wrote: an embedded cluster takes its last metrics with it when its job ends."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._results = Path(spec.sink.path) if isinstance(spec.sink, JsonlSink) else None
        self._letters = Path(spec.dead_letters.path)
        self._before = {*self._parts(self._results), *self._parts(self._letters)}

    def since(self, last: Snapshot) -> Snapshot:
        """`last` with the exact numbers, where results went to files."""
        letters = self._lines(self._letters)
        if self._results is None:
            return replace(last, dead_letters=letters)
        results = self._lines(self._results)
        accepted = max(last.accepted, results + letters - last.reissued)
        return replace(last, results=results, dead_letters=letters, accepted=accepted, in_flight=0, pending=0)

    def _lines(self, path: Path | None) -> int:
        return sum(count_lines(part) for part in self._parts(path) if part not in self._before)

    @staticmethod
    def _parts(path: Path | None) -> list[Path]:
        return [] if path is None else committed_parts(path)


def _snapshot(job: RunningJob, before: Snapshot, elapsed_s: float) -> Snapshot:
    state = job.state()
    counts = job.counts()
    if not counts:
        return replace(before, elapsed_s=elapsed_s, state=state)

    def whole(name: str) -> int:
        return int(counts.get(name, 0))

    return Snapshot(
        elapsed_s=elapsed_s,
        state=state,
        accepted=whole("accepted"),
        results=whole("results"),
        dead_letters=whole("dead_letters"),
        in_flight=whole("in_flight"),
        pending=whole("pending"),
        retries=whole("retries"),
        reissued=whole("reissued"),
        prompt_tokens=whole("prompt_tokens"),
        completion_tokens=whole("completion_tokens"),
        event_p50_s=counts.get("event_p50_us", 0) / 1e6,
        event_p99_s=counts.get("event_p99_us", 0) / 1e6,
        engine_p50_s=counts.get("engine_p50_us", 0) / 1e6,
        restarts=job.restarts(),
    )


def _flink_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _held(home: Path, name: str) -> Iterator[None]:
    """Only one run of a pipeline at a time: two would restore the same state."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingError(f"pipeline {name!r} is running already, with its state in {home}") from None
        yield


def _noted(home: Path) -> dict[str, Any]:
    try:
        noted = json.loads((home / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _note(
    home: Path,
    spec: PipelineSpec,
    *,
    finished: bool,
    submitted_s: float | None = None,
    jvm: tuple[int, float] | None = None,
) -> None:
    content = {
        "finished": finished,
        "shards": spec.shards,
        "mode": spec.mode,
        "fingerprint": fingerprint(spec),
        "submitted_s": submitted_s,
        "jvm": jvm,
    }
    written = home / "run.json.new"
    written.write_text(json.dumps(content))
    os.replace(written, home / "run.json")
