"""`forebay demo`: a small pipeline from end to end."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.output import (
    JsonFile,
    PagePort,
    check_json,
    errors_console,
    port_of,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.cli.setup import announce_install
from forebay.cli.show import PAGE
from forebay.errors import SettingError
from forebay.settings import SecretRef, load_settings

if TYPE_CHECKING:
    from forebay.cli.demo.kafka import DemoTopics

STARTS = (
    "Starting Flink and vLLM on this processor takes about half a minute, most of it for vLLM. Then the "
    "engine is measured, to choose a demo of the right size."
)


def demo(
    *,
    input: Annotated[Path | None, typer.Option(help="JSONL or CSV file of your own events.")] = None,
    engine: Annotated[str | None, typer.Option(help="URL of an engine; otherwise a local one.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name, if the engine serves several.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the engine's API key.")
    ] = None,
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Number of events; by default about a minute's worth, at most 300."),
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Replay at recorded times, sped up by this factor.")
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="Field with the text.")] = None,
    time_field: Annotated[str | None, typer.Option(help="Field with the time.")] = None,
    capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum requests in flight; default: chosen for the engine, at most 32."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated posts.")] = 1,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Use two new topics on this Kafka broker. Without an address, a broker is started from the "
            "distribution in FOREBAY_KAFKA_HOME.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the results.")] = None,
    ui: PagePort = None,
    json: JsonFile = None,
) -> None:
    """Stream events through Flink and a model, and show the results.

    A browser with a window shows the run even without --ui.
    """
    from forebay.cli.demo.kafka import LOCAL, check_kafka
    from forebay.cli.demo.plan import DemoOptions, plan_demo
    from forebay.cli.demo.run import run_demo
    from forebay.cli.demo.screen import show
    from forebay.cli.live import LiveLine
    from forebay.cli.watch import Watched, has_browser
    from forebay.engine.launch import ConsoleProgress, local_replicas
    from forebay.fields import secret_variables
    from forebay.pipeline.preflight import check_secrets

    check_json(json)
    port = port_of(ui)
    if engine is None and (model is not None or api_key_env is not None):
        raise SettingError(
            "--model and --api-key-env: only allowed with --engine; the local engine needs neither"
        )
    console, settings = errors_console(), load_settings()
    if kafka is not None:
        check_kafka(kafka, settings)
    started = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    place = (out or Path("out") / f"demo-{started}").resolve()
    options = DemoOptions(
        out=place,
        input=input,
        events=events,
        speed=speed,
        text_field=text_field,
        time_field=time_field,
        capacity=capacity,
        seed=seed,
        model=model,
        api_key=None if api_key_env is None else SecretRef(env=api_key_env),
    )
    spec = plan_demo(options).spec
    settings = replace(settings, secret_variables=settings.secret_variables | secret_variables(spec))
    check_secrets(spec, here=True)
    if engine is None:
        announce_install(settings, console)
        say(console, STARTS)
    replicas = (
        nullcontext([engine])
        if engine
        else local_replicas(settings=settings, progress=ConsoleProgress(console))
    )
    if port is None and has_browser():
        port = 0
    with LiveLine(console) as line, Watched(spec, console, line.show).shown(port, reads=False) as watched:
        outcome = run_demo(
            options,
            replicas,
            settings,
            kafka=kafka,
            name=f"demo-{started}",
            watch=watched.watch,
            tell=lambda words: say(console, words),
        )
    topics, where = outcome.topics, f"results and dead letters as JSON lines: {place}"
    if topics is not None:
        where = where_of(topics, local=kafka == LOCAL, place=place)
    document = {
        "run": asdict(outcome.last),
        "summary": asdict(outcome.summary),
        "measured": None if outcome.measured is None else asdict(outcome.measured),
        "first_answer_s": outcome.first_answer_s,
        **({} if topics is None else {"topics": asdict(topics)}),
    }
    write_json(json, document)
    if port is not None:
        watched.write(place / PAGE)
    if shows_text(json):
        show(outcome.summary, outcome.last, where, results_console())


def where_of(topics: DemoTopics, *, local: bool, place: Path) -> str:
    text = (
        f"answers in topic {topics.answers} and dead letters in {topics.dead_letters}, at {topics.bootstrap}"
    )
    return f"{text}; the demo's own Kafka has stopped, its data is in {place / 'kafka'}" if local else text
