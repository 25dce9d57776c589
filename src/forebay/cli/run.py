"""`forebay run`: run a pipeline file, or a built-in application on a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from forebay.apps import APPLICATIONS
from forebay.cli.options import ApiKeyEnv, option
from forebay.cli.output import (
    STDOUT,
    Command,
    JsonFile,
    PagePort,
    blamed,
    check_json,
    errors_console,
    port_of,
    print_line,
    print_report,
)
from forebay.cli.show import PAGE
from forebay.errors import ForebayError, PipelineFailed, SettingError
from forebay.json_numbers import read_json
from forebay.settings import load_settings
from forebay.untrusted_text import counted, replace_controls

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.clients.s3.location import Location
    from forebay.pipeline.outputs import OutputCounts
    from forebay.pipeline.plan import Plan
    from forebay.pipeline.run import OpenAnyEngine
    from forebay.pipeline.snapshot import Snapshot
    from forebay.pipeline.spec import PipelineSpec


WHERE = {
    "sink.path": "the results",
    "dead_letters.path": "the dead letters",
    "assignments.path": "the topic of each text",
}


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
        option(
            "For an application: a file of JSON lines, CSV or text, a folder of them, wikimedia, jetstream, "
            "generator, or kafka://HOST:PORT/TOPIC."
        ),
    ] = None,
    out: Annotated[
        Path | None, option("For an application: folder for its results; default: out/NAME.")
    ] = None,
    key: Annotated[
        str | None,
        option("For an application: the key field; default: user for sessions, channel for summary."),
    ] = None,
    time: Annotated[str | None, option("For an application: the time field.")] = None,
    set: Annotated[
        list[str] | None,
        option(
            "Override a pipeline setting, such as checkpoint.interval_s=5; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    engine: Annotated[
        list[str] | None, option("URL of an engine, instead of the file's; may be repeated.")
    ] = None,
    replicas: Annotated[
        str | None,
        option("Local replicas: a number, or such as 0..2, scaled with the stream.", metavar="MIN..MAX"),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    dry_run: Annotated[
        bool, option("Check the pipeline, print it and its graph, and start nothing.", "--dry-run")
    ] = False,
    fresh: Annotated[
        bool, option("Start over and delete the checkpoints; outputs are kept.", "--fresh")
    ] = False,
    from_checkpoint: Annotated[
        str | None,
        option(
            "Resume from this checkpoint, and write what was committed after it again.", metavar="PATH|URL"
        ),
    ] = None,
    cluster: Annotated[str | None, option("HOST:PORT of a running Flink cluster.")] = None,
    ui: PagePort = None,
    json: JsonFile = None,
) -> None:
    """Run a pipeline until its source ends, or Ctrl-C; it resumes where it stopped.

    If Flink crashes, it is restarted. The exit status is 0 if the pipeline finished (even with dead letters),
    1 if it failed, 2 for a wrong setting, 130 after Ctrl-C and 143 after SIGTERM.
    """
    from forebay.pipeline.inference_settings import replicas_settings
    from forebay.pipeline.load import ApplicationOptions, load_pipeline
    from forebay.pipeline.plan import Plan

    checkpoint = _checkpoint(from_checkpoint, fresh=fresh)
    check_json(json)
    application = ApplicationOptions(source, out, key, time)
    values = [*(set or [])]
    if api_key_env is not None:
        values.append(f"engine.api_key={orjson.dumps({'env': api_key_env}).decode()}")
    if replicas is not None:
        values.extend(replicas_settings(replicas))
    plan = Plan(
        load_pipeline(pipeline, application, values),
        load_settings(),
        engine=tuple(engine or ()),
        cluster=cluster,
        fresh=fresh,
        from_checkpoint=checkpoint,
        page=application.folder(pipeline) / PAGE if pipeline in APPLICATIONS.names() else None,
    )
    if dry_run:
        show_plan(plan, json)
    else:
        _check_options(plan, json, replicas)
        _run(plan, json, ui)


def _checkpoint(given: str | None, *, fresh: bool) -> Location | None:
    from forebay.clients.s3.location import location_of

    if given is None:
        return None
    if fresh:
        raise SettingError("--from-checkpoint: not allowed with --fresh, which starts from the beginning")
    with blamed("--from-checkpoint"):
        return location_of(given)


def _check_options(plan: Plan, json: str | None, replicas: str | None) -> None:
    from forebay.connectors.files.settings import StdoutSink
    from forebay.ports import is_this_machine

    if json == STDOUT and isinstance(plan.spec.sink, StdoutSink):
        raise SettingError(
            "--json: not possible on standard output, because the sink writes results there (stdout). "
            "Name a file: --json report.json"
        )
    if replicas is not None and not plan.starts_engine:
        raise SettingError(
            "--replicas: only for the local engine, which the run starts; this pipeline "
            + ("uses another" if plan.spec.asks_model else "uses no model")
        )
    # Local replicas depend on metrics of subtasks on this machine, and listen on its loopback interface.
    scaled = plan.starts_engine and plan.spec.scaling is not None
    if scaled and plan.cluster and not is_this_machine(plan.cluster.rpartition(":")[0].strip("[]")):
        raise SettingError(
            f"scaling: local replicas need a cluster on this machine, found --cluster {plan.cluster}; "
            f"start replicas that it can reach, and name them with --engine"
        )


def _run(plan: Plan, json: str | None, ui: str | None) -> None:
    from forebay.pipeline.flink_process import FlinkLauncher

    port = port_of(ui)

    with FlinkLauncher() as launcher:
        # Before other imports, because it takes longest.
        launcher.start(plan)
        from forebay.cli.live import LiveLine, report
        from forebay.cli.watch import Watched, page_of
        from forebay.pipeline.outputs import OutputCounts
        from forebay.pipeline.preflight import reads_nothing
        from forebay.pipeline.run import run_pipeline

        spec, errors = plan.spec, errors_console()
        print_doubt(spec, errors)
        print_line(errors, "starting Flink" if plan.cluster is None else f"connecting to {plan.cluster}")
        one_each = spec.application is None
        written = OutputCounts(spec, None)
        page = page_of(plan, ui=ui is not None)
        # None: the number of replicas is not known here.
        urls = None if spec.scaling is not None else plan.engine or spec.engine.url
        why_lost = _describe_losses(written, spec.dead_letters.summary())
        live = LiveLine(errors, one_each=one_each, why_lost=why_lost, why_unread=spec.source.why_unread)
        with live as line:
            watched = Watched(spec, errors, line.show, replicas=len(urls) if urls else None)
            try:
                with watched.shown(port, reads=page is not None or spec.application is not None):
                    last = run_pipeline(plan, _engine(plan, errors), watched.watch, launcher=launcher)
            except BaseException as error:
                line.stop()
                if json is not None and line.last is not None:
                    report(line.last, one_each=one_each, json=json, console=None)
                if isinstance(error, KeyboardInterrupt):
                    _print_stopped(plan, errors, line.last, written)
                if isinstance(error, KeyboardInterrupt | PipelineFailed) and line.last is not None:
                    watched.finish(page)
                raise
    limited = line.throughput.limited(last)
    report(last, one_each=one_each, json=json, console=errors, limited=limited)
    if not last.results and last.dead_letters:
        show_lost(written.dead_letters(), errors, last.dead_letters, spec.dead_letters.summary())
    elif last.dead_letters and (why := _why_lost(written.dead_letters())):
        print_line(errors, f"most often {why}")
    if not last.results and not last.dead_letters and reads_nothing(spec):
        print_line(errors, f"nothing to read: {spec.source.summary()} is empty")
    for what, path in spec.directories().items():
        print_line(errors, f"{WHERE[what]}: {path}")
    watched.finish(page)


def _engine(plan: Plan, errors: Console) -> OpenAnyEngine:
    from forebay.engine.launch import ConsoleProgress, EngineOptions, local_replicas
    from forebay.pipeline.scaled_engine import scaled_engine

    if not plan.starts_engine:
        return nullcontext(plan.engine)
    if plan.spec.scaling is not None:
        return scaled_engine(plan.spec, EngineOptions(), plan.settings, ConsoleProgress(errors))
    return local_replicas(settings=plan.settings, progress=ConsoleProgress(errors))


def _print_stopped(plan: Plan, errors: Console, last: Snapshot | None, written: OutputCounts) -> None:
    from forebay.clients.s3.client import StoreAway
    from forebay.pipeline.state_store import newest_of, open_store

    spec = plan.spec
    if last is not None and (last.results or last.dead_letters):
        print_line(errors, f"after {last.elapsed_s:.0f} s: {_done(spec, last, written.since(last))}")
        if not last.results:
            show_lost(written.dead_letters(), errors, last.dead_letters, spec.dead_letters.summary())
    store = open_store(plan.state)
    try:
        there = any(newest_of(store, job) for job in store.jobs())
        where = "resume from the newest checkpoint" if there else "start over: there is no checkpoint yet"
    except StoreAway:
        where = "resume"
    print_line(errors, f"stopped; run the same command to {where}")


def _done(spec: PipelineSpec, answered: Snapshot, written: Snapshot) -> str:
    """The outcome of an interrupted run. Answers since the last checkpoint are not written yet."""
    again = "not committed yet and will be repeated"
    if not {"sink.path", "dead_letters.path"} <= spec.directories().keys():
        what = f"{counted(answered.results, 'result')} and {counted(answered.dead_letters, 'dead letter')}"
        return f"{what} (those that are {again} are included)"
    what = f"{counted(written.results, 'result')} and {counted(written.dead_letters, 'dead letter')} written"
    if spec.application is not None:
        return f"{what}; answers that are {again} are not counted"
    more = answered.results + answered.dead_letters - written.results - written.dead_letters
    return f"{what}; {counted(more, 'more answer is', 'more answers are')} {again}" if more > 0 else what


def show_plan(plan: Plan, json: str | None) -> None:
    """Check `plan` as a run does, and print its pipeline as YAML, with its graph. Starts nothing."""
    from forebay.pipeline.plan import graph_text, resolved, stages_of
    from forebay.pipeline.preflight import check
    from forebay.yaml_document import to_yaml

    check(plan, dry_run=True)
    print_doubt(plan.spec, errors_console())
    document, stages = resolved(plan.spec, plan.engine), stages_of(plan.spec, plan.engine)
    # The graph is a comment, so the output is a valid pipeline file.
    graph = "\n".join(f"# {line}" for line in graph_text(stages).splitlines())
    report = {"pipeline": document, "graph": [asdict(stage) for stage in stages]}
    print_report(json, report, lambda _: typer.echo(replace_controls(f"{to_yaml(document)}\n{graph}")))


def print_doubt(spec: PipelineSpec, console: Console) -> None:
    """Warn if the prompt has no field, the first records would all become dead letters or the source looks
    wrong.
    """
    from forebay.pipeline.preflight import constant_prompt_warning, first_record_warning

    checks = (constant_prompt_warning(spec), *spec.source.warnings(), first_record_warning(spec))
    for warning in filter(None, checks):
        print_line(console, f"warning: {warning}", style="yellow")


MAX_LOOKED_AT, MAX_LOOKED_AT_BYTES = 10_000, 64 << 20
MAX_CHARS = 200


def show_lost(letters: Iterable[bytes], console: Console, count: int, where: str) -> None:
    """Warn that a run has only `count` dead letters, with the most frequent cause or the place `where`."""
    why = _why_lost(letters)
    text = f"most often {why}" if why else f"causes in {where}"
    print_line(console, f"warning: no results, only dead letters ({count}), {text}", style="yellow")


def _why_lost(letters: Iterable[bytes], only: str | None = None) -> str:
    """The cause `only`, or the most frequent one, with its first detail; empty if there is no such letter, or
    none can be read.
    """
    counts: Counter[str] = Counter()
    details: dict[str, str] = {}
    left = MAX_LOOKED_AT_BYTES
    with suppress(OSError, ForebayError):
        for line in islice(letters, MAX_LOOKED_AT):
            left -= len(line)
            if left < 0:
                break
            letter = read_json(line)
            cause = letter["cause"]
            counts[cause] += only is None or cause == only
            details.setdefault(cause, letter["detail"][:MAX_CHARS])
    for cause, count in counts.most_common(1):
        return f"{cause}: {details[cause]}".replace("\n", " ") if count else ""
    return ""


def _describe_losses(written: OutputCounts, where: str) -> Callable[[str], str]:
    def text(cause: str) -> str:
        # Those since the last checkpoint are not there yet.
        return _why_lost(written.dead_letters(), cause) or f"{cause}, details in {where}"

    return text
