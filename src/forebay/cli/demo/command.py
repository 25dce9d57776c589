"""`forebay demo`: a small pipeline from end to end."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated

from forebay.cli.options import ApiKeyEnv, ModelName, option
from forebay.cli.output import (
    JsonFile,
    PagePort,
    check_json,
    errors_console,
    port_of,
    print_line,
    print_report,
)
from forebay.cli.setup import announce_install
from forebay.cli.show import PAGE
from forebay.errors import SettingError
from forebay.settings import SecretRef, load_settings

STARTS = (
    "Starting Flink and vLLM on this processor takes about half a minute, most of it for vLLM. Then the "
    "engine is measured, to choose a demo of the right size."
)


def demo(
    *,
    input: Annotated[Path | None, option("File of your own events: JSON lines, CSV or text.")] = None,
    engine: Annotated[str | None, option("URL of an engine; otherwise a local one.")] = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    events: Annotated[
        int | None, option("Number of events; default: a minute's worth, at most 300.", min=1)
    ] = None,
    speed: Annotated[float | None, option("Replay at recorded times, sped up by this factor.")] = None,
    text_field: Annotated[str | None, option("Field with the text.")] = None,
    time_field: Annotated[str | None, option("Field with the time.")] = None,
    capacity: Annotated[
        int | None, option("Maximum requests in flight; default: as fits the engine, at most 32.", min=1)
    ] = None,
    seed: Annotated[int, option("Seed of the generated posts.")] = 1,
    kafka: Annotated[
        str | None,
        option(
            "Use two new topics on this broker; without an address, one is started from FOREBAY_KAFKA_HOME.",
            metavar="[HOST:PORT]",
        ),
    ] = None,
    out: Annotated[Path | None, option("Directory for the results.")] = None,
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
    api_key = None if api_key_env is None else SecretRef(env=api_key_env)
    options = DemoOptions(place, input, events, speed, text_field, time_field, capacity, seed, model, api_key)
    demo = plan_demo(options)
    spec = demo.spec
    settings = replace(settings, secret_variables=settings.secret_variables | secret_variables(spec))
    check_secrets(spec, here=True)
    if demo.guess:
        print_line(console, demo.guess)
    if engine is None:
        announce_install(settings, console)
        print_line(console, STARTS)
    local = local_replicas(settings=settings, progress=ConsoleProgress(console))
    if port is None and has_browser():
        port = 0
    with LiveLine(console) as line, Watched(spec, console, line.show).shown(port, reads=False) as watched:
        outcome = run_demo(
            options,
            nullcontext([engine]) if engine else local,
            settings,
            kafka=kafka,
            name=f"demo-{started}",
            watch=watched.watch,
            note=partial(print_line, console),
        )
    topics, where = outcome.topics, f"results and dead letters as JSON lines: {place}"
    if topics is not None:
        where = f"answers in topic {topics.answers} and dead letters in {topics.dead_letters}"
        where += f", at {topics.bootstrap}"
        if kafka == LOCAL:
            where += f"; the demo's own Kafka has stopped, its data is in {place / 'kafka'}"
    document = {
        "run": asdict(outcome.last),
        "summary": asdict(outcome.summary),
        "measured": None if outcome.measured is None else asdict(outcome.measured),
        "first_answer_s": outcome.first_answer_s,
        **({} if topics is None else {"topics": asdict(topics)}),
    }
    if port is not None:
        watched.write(place / PAGE)
    print_report(json, document, lambda console: show(outcome.summary, outcome.last, where, console))
