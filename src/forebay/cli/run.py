"""`forebay run`: run a pipeline file, or a built-in application on a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from forebay.apps import APPLICATIONS
from forebay.cli.output import (
    STDOUT,
    Command,
    JsonFile,
    check_json,
    errors_console,
    say,
    shows_text,
    write_json,
)
from forebay.counted import counted
from forebay.errors import SettingError
from forebay.settings import Settings, load_settings
from forebay.untrusted_text import replace_controls

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.apps.base import Page
    from forebay.clients.s3.location import Location
    from forebay.pipeline.flink_process import FlinkLauncher
    from forebay.pipeline.output_counts import OutputCounts
    from forebay.pipeline.snapshot import Snapshot
    from forebay.pipeline.spec import PipelineSpec


APPLICATION_OPTIONS = ("source", "out", "key", "time")
LOOK_BYTES = 1 << 20
PLANNED = (b"event_time", b"summary")
"""A text with one of these may be a pipeline that needs Flink's table planner."""
WHERE = {"sink.path": "the results", "dead_letters.path": "the dead letters"}


class RunCommand(Command):
    """`forebay run`; its help also lists applications of installed packages."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.epilog = APPLICATIONS.note() or None
        super().format_help(ctx, formatter)


def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            help=f"A pipeline file (YAML), or an application: {', '.join(APPLICATIONS.own)}.",
            metavar="PIPELINE",
        ),
    ],
    *,
    source: Annotated[
        str | None,
        typer.Option(help="For an application: a JSONL or CSV file, or wikimedia, jetstream, generator."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="For an application: folder for its results; default: out/NAME.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="For an application: the key field; default: user for sessions, channel for summary."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="For an application: the time field.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Override a pipeline setting, such as checkpoint.interval_s=5; may be repeated.",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="URL of an engine, instead of the file's; may be repeated.")
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="MIN..MAX",
            help="Local replicas, such as 0..2: scaled with the stream; or a fixed number.",
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the engine's API key.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the pipeline, print it and its graph, and start nothing."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over and delete the checkpoints; outputs are kept.")
    ] = False,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            help="Resume from this checkpoint; results committed after it are written again.",
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="HOST:PORT of a running Flink cluster.")] = None,
    json: JsonFile = None,
) -> None:
    """Run a pipeline until its source ends, or Ctrl-C; it resumes where it stopped.

    If Flink crashes, it is restarted. The exit status is 0 if the pipeline finished (even with dead letters),
    1 if it failed, 2 for a wrong setting, 130 after Ctrl-C and 143 after SIGTERM.
    """
    given = {"source": source, "out": out, "key": key, "time": time}
    values = [*(set or []), *_key_setting(api_key_env), *_range_setting(replicas)]
    if fresh and from_checkpoint is not None:
        raise SettingError("--from-checkpoint: not allowed with --fresh, which starts from the beginning")
    check_json(json)
    if dry_run:
        spec = _spec(pipeline, given, values, out or Path("out", pipeline))
        show_plan(spec, engine or [], json, cluster=cluster)
        return
    from forebay.pipeline.flink_process import FlinkLauncher

    settings = load_settings()
    with FlinkLauncher(settings) as launcher:
        # First of all, even before other imports, because it takes longest.
        looks = look_of(pipeline, values)
        launcher.start_ahead(jars_by_look(looks, settings), planner=any(word in looks for word in PLANNED))
        _run(
            pipeline,
            given,
            values,
            {"fresh": fresh, "from_checkpoint": _checkpoint(from_checkpoint), "cluster": cluster},
            engine or [],
            replicas=replicas,
            json=json,
            launcher=launcher,
            settings=settings,
        )


def _checkpoint(given: str | None) -> Location | None:
    from forebay.clients.s3.location import location_of

    if given is None:
        return None
    try:
        return location_of(given)
    except SettingError as error:
        raise SettingError(f"--from-checkpoint: {error}") from None


def _key_setting(api_key_env: str | None) -> list[str]:
    return [] if api_key_env is None else [f"engine.api_key={orjson.dumps({'env': api_key_env}).decode()}"]


def _range_setting(replicas: str | None) -> list[str]:
    from forebay.pipeline.scaling_settings import replicas_settings

    return [] if replicas is None else replicas_settings(replicas)


def look_of(pipeline: str, values: Sequence[str]) -> bytes:
    text = " ".join(values).encode()
    with suppress(OSError), Path(pipeline).open("rb") as file:
        text += file.read(LOOK_BYTES)
    return text + pipeline.encode()


def jars_by_look(text: bytes, settings: Settings) -> tuple[Path, ...]:
    from forebay.connectors.jars import installed_jars

    return installed_jars(settings.connectors) if b"kafka" in text else ()


def _run(
    pipeline: str,
    given: Mapping[str, Any],
    values: Sequence[str],
    options: Mapping[str, Any],
    engine: Sequence[str],
    *,
    replicas: str | None,
    json: str | None,
    launcher: FlinkLauncher,
    settings: Settings,
) -> None:
    from forebay.cli.live import LiveLine, report
    from forebay.connectors.stdout import StdoutSink
    from forebay.engine.launch import ConsoleProgress, EngineOptions, local_replicas
    from forebay.fields import secret_variables
    from forebay.pipeline.first_records import reads_nothing
    from forebay.pipeline.output_counts import OutputCounts
    from forebay.pipeline.run import OpenAnyEngine, RunOptions, run_pipeline
    from forebay.pipeline.scaling.engine import scaled_engine

    ready = APPLICATIONS.find(pipeline)
    folder = given["out"] or Path("out", pipeline)
    spec = _spec(pipeline, given, values, folder)
    if json == STDOUT and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "--json: not possible on standard output, because the sink writes results there (stdout). "
            "Name a file: --json report.json"
        )
    settings = replace(settings, secret_variables=settings.secret_variables | secret_variables(spec))
    errors = errors_console()
    say_doubt(spec, errors)
    local = spec.asks_model and not engine and spec.engine.replicas() is None
    place: OpenAnyEngine = nullcontext(engine)
    if local and spec.scaling is not None:
        _check_reach(options["cluster"])
        place = scaled_engine(spec, EngineOptions(), settings, ConsoleProgress(errors))
    elif local:
        place = local_replicas(settings=settings, progress=ConsoleProgress(errors))
    elif replicas is not None:
        raise SettingError(
            "--replicas: only for the local engine, which the run starts; this pipeline "
            + ("uses another" if spec.asks_model else "uses no model")
        )
    one_each = spec.application is None
    page = None if ready is None else ready.page()
    written = OutputCounts(spec, None)
    with LiveLine(errors) as line:
        try:
            last = run_pipeline(spec, place, RunOptions(**options), settings, line.show, launcher=launcher)
        except BaseException as error:
            line.stop()
            if json is not None and line.last is not None:
                report(line.last, one_each=one_each, json=json, console=None)
            if isinstance(error, KeyboardInterrupt):
                _say_stopped(spec, errors, line.last, written)
                _write_page(page, folder, errors)
            raise
    limited = line.throughput.limited(last)
    report(last, one_each=one_each, json=json, console=errors, limited=limited)
    if not last.results and last.dead_letters:
        show_lost(written.dead_letters(), errors, last.dead_letters, spec.dead_letters.summary())
    if not last.results and not last.dead_letters and reads_nothing(spec):
        say(errors, f"nothing to read: {spec.source.summary()} is empty")
    for what, path in spec.directories().items():
        say(errors, f"{WHERE[what]}: {path}")
    _write_page(page, folder, errors)


def _check_reach(cluster: str | None) -> None:
    """Local replicas depend on metrics of subtasks on this machine, and listen on its loopback interface."""
    from forebay.ports import is_this_machine

    if cluster is not None and not is_this_machine(cluster.rpartition(":")[0].strip("[]")):
        raise SettingError(
            f"scaling: local replicas need a cluster on this machine, found --cluster {cluster}; "
            f"start replicas that it can reach, and name them with --engine"
        )


def _say_stopped(spec: PipelineSpec, errors: Console, last: Snapshot | None, written: OutputCounts) -> None:
    from forebay.clients.s3.client import StoreAway
    from forebay.clients.s3.location import location_of
    from forebay.pipeline.state_store import newest_of, open_store

    if last is not None and (last.results or last.dead_letters):
        say(errors, f"after {last.elapsed_s:.0f} s: {_done(spec, last, written.since(last))}")
        if not last.results:
            show_lost(written.dead_letters(), errors, last.dead_letters, spec.dead_letters.summary())
    store = open_store(location_of(spec.checkpoint.dir))
    try:
        there = any(newest_of(store, job) for job in store.jobs())
        where = "resume from the newest checkpoint" if there else "start over: there is no checkpoint yet"
    except StoreAway:
        where = "resume"
    say(errors, f"stopped; run the same command to {where}")


def _done(spec: PipelineSpec, answered: Snapshot, written: Snapshot) -> str:
    """The outcome of an interrupted run. Answers since the last checkpoint are not written yet."""
    again = "not committed yet and will be repeated"
    if len(spec.directories()) < 2:
        what = f"{counted(answered.results, 'result')} and {counted(answered.dead_letters, 'dead letter')}"
        return f"{what} (those that are {again} are included)"
    what = f"{counted(written.results, 'result')} and {counted(written.dead_letters, 'dead letter')} written"
    if spec.application is not None:
        return f"{what}; answers that are {again} are not counted"
    more = answered.results + answered.dead_letters - written.results - written.dead_letters
    return f"{what}; {counted(more, 'more answer is', 'more answers are')} {again}" if more > 0 else what


def _write_page(make: Page | None, folder: Path, errors: Console) -> None:
    if make is None:
        return
    from forebay.connectors.files.sink import read_jsonl_sink

    page = folder / "page.html"
    lines = chain(read_jsonl_sink(folder / "results"), read_jsonl_sink(folder / "dead-letters"))
    page.write_text(make(lines), encoding="utf-8")
    say(errors, f"results as a page: {page}")


def _spec(pipeline: str, given: Mapping[str, Any], values: Sequence[str], out: Path) -> PipelineSpec:
    from forebay.pipeline.load import ApplicationOptions, load_spec, preset_spec

    applications = APPLICATIONS.names()
    if pipeline not in applications:
        _check_name(pipeline, applications)
        named = [f"--{name}" for name in APPLICATION_OPTIONS if given[name]]
        if named:
            raise SettingError(
                f"{', '.join(named)}: only for applications ({', '.join(applications)}); for a pipeline "
                f"file, edit it or use --set"
            )
        return load_spec(Path(pipeline), values)
    if given["source"] is None:
        raise SettingError(f"forebay run {pipeline}: name the source with --source")
    return preset_spec(
        pipeline, ApplicationOptions(given["source"], out, given["key"], given["time"], values)
    )


def _check_name(pipeline: str, applications: Sequence[str]) -> None:
    from forebay.documents import suggestion

    path = Path(pipeline)
    if path.exists():
        return
    names = [*applications]
    if path.parent.is_dir():
        beside = sorted(file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml"))
        names += [str(path.parent / name) for name in beside[:1000]]
    raise SettingError(
        f"forebay run {pipeline[:200]}: no such file or application; expected a pipeline "
        f"file or one of {', '.join(applications)}{suggestion(pipeline, names)}"
    )


def show_plan(spec: PipelineSpec, engine: Sequence[str], json: str | None, *, cluster: str | None) -> None:
    """Check what `spec` needs on this machine, and print it resolved as YAML, with its graph.

    Starts and writes nothing except the file of `--json`. Raises `SettingError` like a run would before it
    starts anything.
    """
    from forebay.pipeline.plan import graph_text, resolved, stages_of, to_yaml
    from forebay.pipeline.preflight import check_paths, check_secrets

    check_secrets(spec, here=cluster is None)
    check_paths(spec, make=False)
    say_doubt(spec, errors_console())
    document, stages = resolved(spec, engine), stages_of(spec, engine)
    write_json(json, {"pipeline": document, "graph": [asdict(stage) for stage in stages]})
    if shows_text(json):
        # The graph is a comment, so the output is a valid pipeline file.
        graph = "\n".join(f"# {line}" for line in graph_text(stages).splitlines())
        typer.echo(replace_controls(f"{to_yaml(document)}\n{graph}"))


def say_doubt(spec: PipelineSpec, console: Console) -> None:
    """Warn if the first records would all become dead letters or the source looks wrong.

    Raises like `first_record_warning`.
    """
    from forebay.pipeline.first_records import first_record_warning

    found = first_record_warning(spec)
    for warning in [*spec.source.warnings(), *([found] if found is not None else [])]:
        say(console, f"warning: {warning}", style="yellow")


MOST_LOOKED_AT = 10_000
MOST_CHARS = 200


def show_lost(letters: Iterable[bytes], console: Console, count: int, where: str) -> None:
    """Warn that a run has only dead letters, with the most frequent cause among the first of `letters`.

    `count` is their number. Names the place `where` they are if `letters` is empty.
    """
    from forebay.json_numbers import read_json

    causes: Counter[str] = Counter()
    details: dict[str, str] = {}
    for line in islice(letters, MOST_LOOKED_AT):
        letter = read_json(line)
        causes[letter["cause"]] += 1
        details.setdefault(letter["cause"], letter["detail"])
    why = f"causes in {where}"
    for cause, _ in causes.most_common(1):
        why = f"most often {cause}: {details[cause][:MOST_CHARS]}".replace("\n", " ")
    say(console, f"warning: no results, only dead letters ({count}), {why}", style="yellow")
