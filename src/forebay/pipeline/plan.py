"""What a pipeline would do: its resolved settings, and the graph of its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from forebay.connectors.base import without_query
from forebay.pipeline.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the job. `parallelism` is its number of subtasks; `shards` and `capacity` (requests in
    flight per subtask) may be None. `after` names the stage whose output it reads."""

    name: str
    what: str
    parallelism: int
    shards: int | None = None
    capacity: int | None = None
    after: str | None = None


def resolved(spec: PipelineSpec, engine: Sequence[str] = ()) -> dict[str, Any]:
    """Every setting of `spec`, defaults included, as in a pipeline file. Secrets are references; queries of
    URLs are removed, as they may contain one. `engine`: URLs that replace those of `spec`."""
    document: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    if engine:
        others = dict.fromkeys(("file", "dns", "kubernetes", "ray"))
        document["engine"] |= {"url": list(engine), **others}
    return {key: _as_written(value) for key, value in document.items()}


def _as_written(value: Any) -> Any:
    """`value` with `type` first, and URLs without their queries."""
    if not isinstance(value, dict):
        return value
    ordered = {key: value[key] for key in sorted(value, key=lambda key: key != "type")}
    return {key: _urls(inner) if key == "url" else _as_written(inner) for key, inner in ordered.items()}


def _urls(value: Any) -> Any:
    if isinstance(value, list):
        return [_urls(each) for each in value]
    return without_query(value) if isinstance(value, str) else value


def to_yaml(document: dict[str, Any]) -> str:
    """`document` as a YAML file that `load_spec` reads as the same values."""
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 110
    yaml.allow_unicode = True
    yaml.representer.add_representer(type(None), _null)
    out = StringIO()
    yaml.dump(_blocks(document), out)
    return out.getvalue()


def _null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _blocks(value: Any) -> Any:
    """Texts of several lines as blocks, if a block can represent them."""
    if isinstance(value, dict):
        return {key: _blocks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_blocks(inner) for inner in value]
    if isinstance(value, str) and "\n" in value and all(_plain(line) for line in value.split("\n")):
        return LiteralScalarString(value)
    return value


def _plain(line: str) -> bool:
    return line.isprintable() and line == line.strip()


def stages_of(spec: PipelineSpec, engine: Sequence[str] = ()) -> list[Stage]:
    """The job's steps from the source to the sinks, in order; `engine`: URLs that replace those of `spec`."""
    application = spec.application
    reads = spec.source.readers(spec)
    stages = [Stage("source", spec.source.summary(), reads)]
    if application is not None and application.own_clock:
        shards = application.finding_shards(spec.shards)
        counting = min(spec.parallelism, shards)
        stages.append(
            Stage(application.type, "finds what to ask about", counting, shards, after=stages[-1].name)
        )
    elif spec.key is not None:
        stages.append(Stage("key", spec.key, reads, after="source"))
    written = stages[-1].name, 1
    if spec.asks_model:
        what = f"{spec.engine.model or 'the model'} at {_engine(spec, engine)}"
        if application is not None and not application.own_clock:
            what = f"{application.type}, asks {what}"
        stages.append(Stage("infer", what, spec.parallelism, spec.shards, spec.capacity, stages[-1].name))
        written = "infer", spec.parallelism
    after, many = written
    for name, sink in spec.sinks().items():
        stages.append(Stage(name, sink.summary(), sink.subtasks or many, after=after))
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


def graph_text(stages: Sequence[Stage]) -> str:
    """The graph as lines of text: each stage with its purpose, parallelism and bounds."""
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
