"""`forebay run`: run a pipeline file, or a ready application on a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from forebay.cli.dead_letter_hint import show_lost
from forebay.cli.live import LiveLine, report
from forebay.control_characters import replace_controls
from forebay.engine.launch import ConsoleProgress, EngineOptions, local_replicas
from forebay.errors import SettingError
from forebay.runtime.flink_process import FlinkLauncher
from forebay.settings import Settings, load_settings

if TYPE_CHECKING:
    from forebay.config.presets import Preset
    from forebay.config.spec import PipelineSpec

WISHES = ("source", "out", "key", "time", "set")
WHERE = {"sink.path": "the results", "dead_letters.path": "the dead letters"}


def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="A pipeline file (YAML), or an application: sessions, summary, topics, trends.",
            metavar="PIPELINE",
        ),
    ],
    *,
    source: Annotated[
        str | None,
        typer.Option(help="For an application: a JSONL or CSV file, or wikimedia, jetstream, generator."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="For an application: folder of its results; out/NAME otherwise.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="For an application: the field with the key; user for sessions, channel for summary."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="For an application: the field with the time.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(help="For an application: KEY=VALUE of its pipeline, such as application.idle_s=60."),
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="URL of an engine, instead of the file's; may be repeated.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; forget the checkpoints.")] = False,
    from_checkpoint: Annotated[
        Path | None,
        typer.Option(help="Resume from this checkpoint; what was committed after it comes a second time."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="HOST:PORT of a running Flink cluster.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Run a pipeline until its source ends, or Ctrl-C; it resumes where it stopped.

    Where Flink is lost on the way, it is started again by itself. The exit status is 0 where the pipeline has
    finished, 1 where it failed, 2 where a setting is wrong, 130 after Ctrl-C and 143 after SIGTERM.
    """
    settings = load_settings()
    with FlinkLauncher(settings) as launcher:
        # Before all else is even imported: it takes longest.
        launcher.start_ahead()
        if fresh and from_checkpoint is not None:
            raise SettingError("--from-checkpoint: expected none with --fresh, which starts at the beginning")
        _run(
            pipeline,
            {"source": source, "out": out, "key": key, "time": time, "set": set},
            {"fresh": fresh, "from_checkpoint": from_checkpoint, "cluster": cluster},
            engine or [],
            json=json,
            launcher=launcher,
            settings=settings,
        )


def _run(
    pipeline: str,
    wishes: Mapping[str, Any],
    options: Mapping[str, Any],
    engine: Sequence[str],
    *,
    json: bool,
    launcher: FlinkLauncher,
    settings: Settings,
) -> None:
    from forebay.config.presets import READY
    from forebay.config.spec import StdoutSink
    from forebay.documents.fields import secret_variables
    from forebay.runtime.run import Engine, RunOptions, run_pipeline

    ready = READY.get(pipeline)
    folder = wishes["out"] or Path("out", pipeline)
    spec = _spec(pipeline, wishes, folder)
    if json and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "--json: expected a sink of files or a topic, found stdout; standard output holds the results"
        )
    settings = replace(settings, secret_variables=secret_variables(spec))
    errors = Console(stderr=True)
    local = spec.asks_model and not engine and spec.engine.replicas() is None
    context = EngineOptions() if ready is None else EngineOptions(max_model_len=ready.context_tokens)
    place: Engine = (
        local_replicas(options=context, settings=settings, progress=ConsoleProgress(errors))
        if local
        else nullcontext(engine)
    )
    one_each = spec.application is None
    with LiveLine(errors) as line:
        try:
            last = run_pipeline(spec, place, RunOptions(**options), settings, line.show, launcher=launcher)
        except BaseException as error:
            line.stop()
            if json and line.last is not None:
                report(line.last, one_each=one_each, json=True, console=errors)
            if isinstance(error, KeyboardInterrupt):
                _say_stopped(spec, errors)
                _write_page(ready, folder, errors)
            raise
    limited = line.throughput.limited(last)
    report(last, one_each=one_each, json=json, console=errors, limited=limited)
    if not last.results and last.dead_letters:
        show_lost(spec.directories().get("dead_letters.path"), errors)
    for what, path in spec.directories().items():
        where = f"{WHERE[what]}: {replace_controls(str(path))}"
        errors.print(where, highlight=False, markup=False, soft_wrap=True)
    _write_page(ready, folder, errors)


def _say_stopped(spec: PipelineSpec, errors: Console) -> None:
    from forebay.flink.checkpoints import newest_of_job
    from forebay.runtime.resume import jobs_in

    there = any(map(newest_of_job, jobs_in(Path(spec.checkpoint.dir))))
    where = "resume from the newest checkpoint" if there else "start over: there is no checkpoint yet"
    errors.print(f"stopped; run the same command to {where}", highlight=False)


def _write_page(ready: Preset | None, folder: Path, errors: Console) -> None:
    if ready is None or ready.page is None:
        return
    from forebay.connectors.sinks import read_jsonl_sink

    page = folder / "page.html"
    page.write_text(ready.page(read_jsonl_sink(folder / "results")), encoding="utf-8")
    errors.print(f"the results as a page: {page}", highlight=False)


def _spec(pipeline: str, given: Mapping[str, Any], out: Path) -> PipelineSpec:
    from forebay.config.load import load_spec
    from forebay.config.presets import READY, ApplicationOptions, preset_spec

    if pipeline not in READY:
        named = [f"--{name}" for name in WISHES if given[name]]
        if named:
            raise SettingError(
                f"{', '.join(named)}: only with an application ({', '.join(READY)}); "
                f"set it in the pipeline file"
            )
        return load_spec(Path(pipeline))
    if given["source"] is None:
        raise SettingError(f"forebay run {pipeline}: name what to read with --source")
    wish = ApplicationOptions(given["source"], out, given["key"], given["time"], given["set"] or ())
    return preset_spec(pipeline, wish)
