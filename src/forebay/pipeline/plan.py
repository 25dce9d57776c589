"""What a run of a pipeline is: the checked file and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forebay.clients.s3.location import Location, S3Path, location_of
from forebay.connectors.base import without_query
from forebay.connectors.jars import KAFKA, S3, Jar
from forebay.connectors.kafka.settings import KafkaSource
from forebay.fields import secret_variables
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a pipeline. Picklable.

    `engine`: URLs that replace the file's replicas. `cluster`: `HOST:PORT` of a running Flink; None: start
    one. `fresh`: discard the checkpoints. `from_checkpoint`: replaces the recorded one; results committed
    after it are duplicated. `in_process`: Flink runs in this process's JVM, and the run ends if that is lost.
    Its state must be in a folder, because nothing would suspend Flink if a lease expired. `page`: where to
    write the application's page.
    """

    spec: PipelineSpec
    settings: Settings
    engine: tuple[str, ...] = ()
    cluster: str | None = None
    fresh: bool = False
    from_checkpoint: Location | None = None
    in_process: bool = False
    page: Path | None = None

    def __post_init__(self) -> None:
        named = self.settings.secret_variables | secret_variables(self.spec)
        object.__setattr__(self, "settings", replace(self.settings, secret_variables=named))

    @property
    def connectors(self) -> tuple[Jar, ...]:
        topics = isinstance(self.spec.source, KafkaSource) or self.spec.topics()
        return (*((KAFKA,) if topics else ()), *((S3,) if self.in_object_store else ()))

    @property
    def jars(self) -> tuple[Path, ...]:
        folder = self.settings.connectors
        return tuple(jar.place(folder) for jar in self.connectors if not jar.plugin)

    @property
    def planner(self) -> bool:
        return bool(self.jars) or self.spec.event_time is not None

    @property
    def state(self) -> Location:
        return location_of(self.spec.checkpoint.dir)

    @property
    def places(self) -> dict[str, Location]:
        written = {key: location_of(path) for key, path in self.spec.written().items()}
        journal = self.spec.journal
        return {
            **written,
            "checkpoint.dir": self.state,
            **({} if journal is None else {"journal.path": Path(journal.path).parent}),
        }

    @property
    def in_object_store(self) -> dict[str, S3Path]:
        return {key: place for key, place in self.places.items() if isinstance(place, S3Path)}

    @property
    def starts_engine(self) -> bool:
        return self.spec.asks_model and not self.engine and self.spec.engine.replicas() is None


@dataclass(frozen=True, slots=True)
class JobStep:
    name: str
    what: str
    parallelism: int
    shards: int | None = None
    capacity: int | None = None
    after: str | None = None


def resolved(spec: PipelineSpec, engine: Sequence[str] = ()) -> dict[str, Any]:
    """All settings, as in a pipeline file. Secrets are references; URL queries are removed."""
    document: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    if engine:
        others = dict.fromkeys(("file", "dns", "kubernetes", "ray"))
        document["engine"] |= {"url": list(engine), **others}
    return {key: _as_written(value) for key, value in document.items()}


def _as_written(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ordered = {key: value[key] for key in sorted(value, key=lambda key: key != "type")}
    return {key: _urls(inner) if key == "url" else _as_written(inner) for key, inner in ordered.items()}


def _urls(value: Any) -> Any:
    if isinstance(value, list):
        return [_urls(each) for each in value]
    return without_query(value) if isinstance(value, str) else value


def stages_of(spec: PipelineSpec, engine: Sequence[str] = ()) -> list[JobStep]:
    application = spec.application
    reads = spec.source.readers(spec)
    stages = [JobStep("source", spec.source.summary(), reads)]
    if application is not None and application.own_clock:
        shards = application.finding_shards(spec.shards)
        counting = min(spec.parallelism, shards)
        stages.append(
            JobStep(application.type, "finds what to ask about", counting, shards, after=stages[-1].name)
        )
    elif spec.key is not None:
        stages.append(JobStep("key", spec.key, reads, after="source"))
    written = stages[-1].name, 1
    if spec.asks_model:
        what = f"{spec.engine.model or 'the model'} at {_engine(spec, engine)}"
        if application is not None and not application.own_clock:
            what = f"{application.type}, asks {what}"
        stages.append(JobStep("infer", what, spec.parallelism, spec.shards, spec.capacity, stages[-1].name))
        written = "infer", spec.parallelism
    for name, sink in spec.sinks().items():
        after, many = written
        if name == "assignments" and application is not None:
            after, many = application.type, min(spec.parallelism, application.finding_shards(spec.shards))
        stages.append(JobStep(name, sink.summary(), sink.subtasks or many, after=after))
    return stages


def _engine(spec: PipelineSpec, engine: Sequence[str]) -> str:
    urls = list(engine) or list(spec.engine.url)
    if urls:
        return ", ".join(map(without_query, urls))
    if spec.engine.file is not None:
        return f"the addresses in {spec.engine.file}"
    if spec.engine.kubernetes is not None:
        return f"the Service {spec.engine.kubernetes}"
    if spec.engine.ray is not None:
        return f"the fleet on Ray {spec.engine.ray}"
    return spec.engine.dns or "the local engine that the run starts"


def graph_text(stages: Sequence[JobStep]) -> str:
    width = max(len(stage.name) for stage in stages)
    lines = []
    for stage in stages:
        bounds = [f"parallelism {stage.parallelism}"]
        if stage.shards is not None:
            bounds.append(f"shards {stage.shards}")
        if stage.capacity is not None:
            bounds.append(f"capacity {stage.capacity}")
        arrow = "" if stage.after is None else "→ "
        lines.append(f"{arrow:2}{stage.name:{width}}  {stage.what}  ({', '.join(bounds)})")
    return "\n".join(lines)
