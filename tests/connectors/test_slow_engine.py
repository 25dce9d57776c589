"""Sources in front of an engine that answers nothing, on an embedded cluster: checkpoints complete, and
their contents are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.feeds import FeedServer, serve
from tests.harness.operators import FRESH, GatedEngineFactory

from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds.feed import Backoff
from forebay.connectors.feeds.source import LIMIT_REACHED, Polled, polled_source
from forebay.connectors.feeds.sse import SseFeed
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
from forebay.connectors.files.source import Files, ReplaySpeed, file_source, replay_source
from forebay.connectors.formats import Format, result_lines
from forebay.connectors.generator.source import Generator, generator_source
from forebay.engine.prompt import PromptTemplate
from forebay.errors import LaunchError
from forebay.flink.checkpoints import newest_checkpoint
from forebay.flink.infer import infer
from forebay.flink.job import RunningJob, submit
from forebay.flink.request_handler import InferenceSpec
from forebay.ports import free_port
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink
TOTAL = 1000
PAD = "x" * 1000
"""Makes a few records larger than Flink's buffers."""


class Scene:
    """A source of `TOTAL` records, all present at once, in front of calls that a gate holds."""

    def __init__(self, jobs: Any, folder: Path, kind: str) -> None:
        self._jobs = jobs
        self._folder = folder
        self._kind = kind
        self._server: FeedServer | None = None
        (folder / "gates").mkdir()
        lines = [orjson.dumps({"n": n, "at": 1000 + n, "pad": PAD}) + b"\n" for n in range(TOTAL)]
        (folder / "in.jsonl").write_bytes(b"".join(lines))

    @contextmanager
    def served(self) -> Iterator[None]:
        if self._kind == "feed":
            self._server = FeedServer([{"n": n, "pad": PAD} for n in range(TOTAL + 50)])
        with serve(self._server) if self._server is not None else nullcontext():
            yield

    def _source(self, env: Any) -> Any:
        if self._server is not None:
            feed = SseFeed(self._server.events_url, backoff=Backoff(0.01, 0.05))
            return polled_source(env, Polled(feed, limit=TOTAL))
        if self._kind == "generator":
            return generator_source(env, Generator(TOTAL, rate_per_s=1e6))
        files = Files(self._folder / "in.jsonl", Format(time=EventTime("at", "unix_s")))
        return (
            replay_source(env, files, ReplaySpeed(speed=1e6))
            if self._kind == "replay"
            else file_source(env, files)
        )

    def start(self, **changes: Any) -> RunningJob:
        port = free_port()
        ports = {"rest.port": str(port), "rest.bind-port": str(port)}
        env = self._jobs.environment(options={**FRESH, **ports}, **changes)
        call = InferenceSpec(
            engine=GatedEngineFactory(self._folder, ScriptedEngineFactory(Fixed(0.0))),
            model="scripted",
            prompt=PromptTemplate("((hold:gate)) {{ event }}"),
            timeout_s=600,
        )
        answered = infer(self._source(env), call, capacity=4)
        jsonl_sink(result_lines(answered.results), JsonlFiles(self._jobs.out))
        return submit(env, "test", self._jobs.rest(port))

    def open_gate(self) -> None:
        (self._folder / "gates" / "gate").touch()

    def finish(self, job: RunningJob) -> None:
        """Wait for the job's end; drain a source that reports that it has reached its limit."""
        while (end := job.ended()) is None:
            with suppress(LaunchError):
                if job.counts().get(LIMIT_REACHED):
                    job.drain(self._jobs.checkpoints / job.id)
        assert end == ""

    def read(self) -> Counter[str]:
        return Counter(orjson.loads(line)["id"] for line in read_jsonl_sink(self._jobs.out))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["feed", "replay", "file", "generator"])
def test_checkpoints_complete_without_answers_and_restores_are_exact(
    jobs: Any, tmp_path: Path, kind: str
) -> None:
    scene = Scene(jobs, tmp_path, kind)
    with scene.served():
        job = scene.start()
        # The operator has accepted all that it can without waiting, and the source is blocked.
        wait_until(lambda: job.counts().get("waited_seconds", 0) > 0)
        for _ in range(3):
            done = job.checkpoints().newest_done
            wait_until(lambda done=done: job.checkpoints().newest_done > done + 1)
        accepted = job.counts()["accepted"]
        job.cancel()
        wait_until(lambda: job.ended() is not None)
        assert accepted < TOTAL
        job = scene.start(restore_from=newest_checkpoint(jobs.checkpoints))
        wait_until(lambda: job.checkpoints().newest_done > 0)
        scene.open_gate()
        scene.finish(job)
    read = scene.read()
    assert len(read) == TOTAL
    assert set(read.values()) == {1}
