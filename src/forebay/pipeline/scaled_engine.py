"""The engine of a scaled run: local replicas, and the loop that decides how many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay.clock import Clock, SystemClock
from forebay.engine.launch import EngineOptions, LocalPlaces, LocalReplica, is_healthy, local_places
from forebay.engine.launch.local import default_context_tokens, resolve_model
from forebay.engine.launch.progress import Progress
from forebay.engine.launch.replicas import START_TIMEOUT_S
from forebay.engine.launch.spec import usable_cores
from forebay.engine.replica import ServedModel, check_context
from forebay.errors import SettingError
from forebay.files import private_folder
from forebay.fleet.autoscale.demand import (
    FRESH_S,
    GONE_S,
    SUFFIX,
    StreamDemand,
    process_of,
    read_reports,
    within,
)
from forebay.fleet.autoscale.learned import ClassMix
from forebay.fleet.autoscale.loop import ScalingLoop, ScalingStep
from forebay.fleet.autoscale.meter import TopicBacklog, TopicQueue
from forebay.fleet.autoscale.settings import ScalingLink, ScalingSettings, memory_of
from forebay.fleet.discovery import ScaledReplicas
from forebay.pipeline.inference import Served, context_need
from forebay.pipeline.local_replicas import LocalReplicas, has_drained, is_idle
from forebay.pipeline.scaling_record import LISTING, LearnedFile, ReplicaStatus, ScalingRecord, scaling_folder
from forebay.pipeline.snapshot import Scaling
from forebay.pipeline.spec import PipelineSpec
from forebay.processes import birth_s, pid_space
from forebay.settings import Settings

LOOK_S = 0.5
SILENT_S = 60.0
"""If no subtask of a job has reported for this long, the job cannot access the folder."""


class ScaledEngine:
    """Local replicas of one run, started and drained with its demand.

    Call `check_replicas` several times a second, from one thread; it does not block. Subtasks report demand
    in `folder`, which also stores what was learned. `asks_each`: each record leads to a call.
    """

    def __init__(
        self,
        places: LocalPlaces,
        settings: ScalingSettings,
        folder: Path,
        *,
        name: str,
        model: str,
        port_base: int,
        start_timeout_s: float = START_TIMEOUT_S,
        asks_each: bool = True,
        clock: Clock | None = None,
        healthy: Callable[[LocalReplica], bool] = is_healthy,
    ) -> None:
        self._folder = private_folder(folder)
        # Left by killed subtasks.
        for old in [*folder.glob(f"*{SUFFIX}"), *folder.glob("*.demand.new")]:
            old.unlink(missing_ok=True)
        self._clock = clock or SystemClock()
        self._record = ScalingRecord(folder, name)
        self._note: Callable[[str], None] = lambda text: None
        self._queue = TopicQueue(settings.answer_tokens if asks_each else 0.0)
        self._looked_s = float("-inf")
        self._runs_since_s: float | None = None
        self._silence_reported = False
        self._reason = self._failure = ""
        self.scaling = Scaling()
        self.replicas = LocalReplicas(
            places.replicas,
            places.shares,
            folder / LISTING,
            healthy=healthy,
            drained=self._drained,
            port_base=port_base,
            start_timeout_s=start_timeout_s,
            note=self._failed,
        )
        scaler, speed = settings.scaler()
        mix = ClassMix(settings.classes)
        parts = {"record cost": self._queue.cost, "classes": mix}
        memory = memory_of(settings, model, parts, scaler.policy, speed)
        self._learned = LearnedFile(folder, memory, self._clock.monotonic_s())
        self._reports = {**read_reports(folder)}
        demand = StreamDemand(
            lambda: self._reports,
            self._clock.wall_ms,
            mix=mix,
            speed=speed,
            ready=lambda: self.replicas.ready,
            queued=lambda: self._queue.waits(self._clock.monotonic_s()),
        )
        self._loop = ScalingLoop(
            scaler, self.replicas, demand, settings.timings.interval_s, on_step=self._stepped
        )
        link = ScalingLink(settings, str(folder))
        self.served = Served(ScaledReplicas(str(folder / LISTING)), model, link)
        self._record.begin(self._clock.wall_ms())

    @property
    def serves(self) -> bool:
        return self.replicas.ready > 0

    @property
    def failed(self) -> int:
        return self.replicas.failed

    def observe(self, backlog: TopicBacklog | None, *, runs: bool = True) -> None:
        if runs and self._runs_since_s is None:
            self._runs_since_s = self._clock.monotonic_s()
        if backlog is not None:
            self._queue.observe(backlog, self._clock.monotonic_s())

    def check_replicas(self, note: Callable[[str], None] = lambda text: None) -> None:
        """Raises `PipelineFailed`."""
        self._note = note
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        while self._learned.problems:
            note(self._learned.problems.pop(0))
        self._reports = read_reports(self._folder)
        self._forget_gone()
        self._check_silence(now_s)
        self.replicas.look(now_s)
        if self._loop.tick(now_s) is not None:
            self._report(now_s)
            with suppress(OSError):
                self._learned.save_if_due(now_s, self._clock.wall_ms())

    def close(self) -> None:
        with suppress(OSError):
            self._learned.save(self._clock.wall_ms())
        self._record.end()

    def _failed(self, text: str) -> None:
        self._note(text)

    def _forget_gone(self) -> None:
        now_ms = self._clock.wall_ms()
        fresh, counted = (within(self._reports, now_ms, age_s) for age_s in (FRESH_S, GONE_S))
        for name in self._reports.keys() - fresh.keys():
            pid = process_of(name, pid_space())
            if name in counted and (pid is None or birth_s(pid) is not None):
                continue
            del self._reports[name]
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def _check_silence(self, now_s: float) -> None:
        if self._reports:
            self._silence_reported = True
        elif self._runs_since_s is not None and not self._silence_reported:
            silent_s = now_s - self._runs_since_s
            if silent_s >= SILENT_S:
                self._silence_reported = True
                self._note(
                    f"no subtask has reported its demand within {silent_s:.0f} s, so nothing is scaled: the "
                    f"task managers must run on this machine, like the local engine, and must be able to "
                    f"write to {self._folder}; or start replicas elsewhere, and name them with --engine"
                )

    def _drained(self, replica: LocalReplica, left: int) -> bool:
        return has_drained(self._reports, self._clock.wall_ms(), replica.url, left, lambda: is_idle(replica))

    def _stepped(self, step: ScalingStep) -> None:
        with suppress(OSError):
            # A full disk must not end a run.
            self._record.step(step, self._clock.wall_ms())
        self._reason = step.decision.reason
        if step.failure and step.failure != self._failure:
            self._note(f"the replicas could not be scaled: {step.failure}")
        self._failure = step.failure

    def _report(self, now_s: float) -> None:
        states = [kept.state for kept in self.replicas.kept]
        step = self._loop.last
        wanted = 0 if step is None else step.decision.wanted
        self.scaling = Scaling(
            ready=states.count("ready"),
            starting=states.count("starting"),
            draining=states.count("draining") + states.count("ending"),
            wanted=wanted,
            # The reason for a number stays until the number changes.
            reason=self._reason if wanted != self.scaling.wanted else self.scaling.reason or self._reason,
        )
        held: dict[str, int] = {}
        for report in self._reports.values():
            for url, count in report.at_replicas.items():
                held[url] = held.get(url, 0) + count
        rows = [
            ReplicaStatus(
                url=kept.replica.url,
                state=kept.state,
                since_s=round(now_s - kept.since_s, 1),
                cores=kept.replica.cores,
                in_flight=held.get(kept.replica.url, 0),
                log=str(kept.replica.log),
            )
            for kept in self.replicas.kept
        ]
        with suppress(OSError):
            self._record.status(rows, self._clock.wall_ms())


@contextmanager
def scaled_engine(
    spec: PipelineSpec, options: EngineOptions, settings: Settings, progress: Progress | None = None
) -> Iterator[ScaledEngine]:
    """Yield the local replicas of `spec`, which has a `scaling`; none is started on entry.

    Raises `SettingError` if this machine lacks cores or memory for the maximum, or the model's context is too
    short; `SetupError` if vLLM cannot be installed.
    """
    assert spec.scaling is not None
    most, cores = spec.scaling.limits.ceiling, len(usable_cores())
    if most > cores:
        raise SettingError(
            f"scaling.max: expected at most {cores} local replicas, one for each core that can be used here, "
            f"found {most}"
        )
    directory, model = resolve_model(options.model, settings)
    context_tokens = options.max_model_len or default_context_tokens(Path(directory))
    check_context(context_need(spec), ServedModel(model, context_tokens))
    named = spec.engine.model
    if named not in (None, model):
        raise SettingError(
            f"engine.model: {named!r} is not served: the local engine serves the default model"
        )
    folder = scaling_folder(settings, spec.name, str(spec.checkpoint.dir))
    with local_places(most, options, settings=settings, progress=progress) as places:
        engine = ScaledEngine(
            places,
            spec.scaling.settings(spec.sampling.max_tokens),
            folder,
            name=spec.name,
            model=places.replicas.model,
            port_base=options.port_base,
            start_timeout_s=options.timeout_s,
            asks_each=spec.application is None or not spec.application.own_clock,
        )
        try:
            yield engine
        finally:
            engine.close()
