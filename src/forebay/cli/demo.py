"""`forebay demo`: the main job in small."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from forebay.cli.live import LiveLine
from forebay.engine.launch import ConsoleProgress, local_replicas
from forebay.errors import SettingError
from forebay.settings import SecretRef, load_settings

if TYPE_CHECKING:
    from forebay.pipelines.demo import Summary
    from forebay.pipelines.demo_topics import Topics
    from forebay.pipelines.snapshot import Snapshot

BAR_WIDTH = 40
EXAMPLE_CHARS = 100


class DemoCommand(TyperCommand):
    """Takes `--kafka` without a value too; Typer knows no options whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_value(args, "--kafka", "local"))


def with_value(words: list[str], option: str, value: str) -> list[str]:
    """`words` with `value` after `option` where no value follows it."""
    found: list[str] = []
    for at, word in enumerate(words):
        found.append(word)
        if word == option and (at + 1 == len(words) or words[at + 1].startswith("-")):
            found.append(value)
    return found


def demo(
    *,
    input: Annotated[Path | None, typer.Option(help="JSONL or CSV file of your own events.")] = None,
    engine: Annotated[str | None, typer.Option(help="URL of an engine; otherwise a local one.")] = None,
    model: Annotated[str | None, typer.Option(help="Which one, where the engine serves several.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the engine's API key.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 300,
    speed: Annotated[float | None, typer.Option(help="Replay at recorded times, so much faster.")] = None,
    text_field: Annotated[str | None, typer.Option(help="Field with the text.")] = None,
    time_field: Annotated[str | None, typer.Option(help="Field with the time.")] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the made-up posts.")] = 1,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Run between two new topics of this Kafka; without an address, of one that is started for "
            "the demo from the distribution that FOREBAY_KAFKA_HOME names.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for what comes out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Stream events through Flink and a model, and show what came out."""
    from forebay.pipelines.demo import DemoOptions, plan_demo, summarize
    from forebay.pipelines.demo_topics import LOCAL, check_kafka, demo_kafka, run_between_topics
    from forebay.pipelines.run import Engine, RunOptions, run_pipeline

    if engine is None and (model is not None or api_key_env is not None):
        raise SettingError(
            "--model and --api-key-env: expected --engine with them; the local engine needs none"
        )
    console, settings = Console(stderr=True), load_settings()
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
    plan = plan_demo(options)
    replicas: Engine = (
        nullcontext([engine])
        if engine
        else local_replicas(settings=settings, progress=ConsoleProgress(console))
    )
    found: dict[str, object] = {}
    with LiveLine(console) as line:
        if kafka is None:
            last = run_pipeline(plan.spec, replicas, RunOptions(fresh=True), settings, line.show)
            summary, where = summarize(plan), f"results and dead letters as JSON lines: {place}"
        else:
            with demo_kafka(kafka, settings, place / "kafka") as bootstrap:
                last, summary, topics = run_between_topics(
                    plan, bootstrap, f"demo-{started}", engine=replicas, settings=settings, watch=line.show
                )
            found, where = {"topics": asdict(topics)}, where_of(topics, local=kafka == LOCAL, place=place)
    if json:
        typer.echo(orjson.dumps({"run": asdict(last), "summary": asdict(summary), **found}).decode())
    else:
        show(summary, last, where, Console())


def where_of(topics: Topics, *, local: bool, place: Path) -> str:
    """Where a demo's answers are, in words."""
    text = (
        f"answers in topic {topics.answers} and dead letters in {topics.dead_letters}, at {topics.bootstrap}"
    )
    return (
        f"{text}; that Kafka was the demo's own and has ended, its data are in {place / 'kafka'}"
        if local
        else text
    )


def show(summary: Summary, last: Snapshot, where: str, console: Console) -> None:
    """The summary for a person; `where` says in words where the results are."""
    console.print(
        f"\n{last.accepted} events in, {summary.results} answers, {summary.dead_letters} dead letters in "
        f"{last.elapsed_s:.0f} s; calls took {summary.call_p50_s:.2f} s (p50) and {summary.call_p99_s:.2f} s "
        f"(p99); {summary.completion_tokens / max(last.elapsed_s, 0.001):.0f} tokens/s",
        highlight=False,
    )
    if len(summary.slices) > 1:
        console.print(_timeline(summary))
    if summary.results:
        console.print(_counts("sentiment", summary.sentiments))
        console.print(_counts("topic", summary.topics))
    if summary.causes:
        console.print(_counts("dead letters by cause", summary.causes))
    examples = Table("event", "answer", title="examples", title_justify="left")
    for example in summary.examples:
        examples.add_row(_plain(example.text), _plain(example.answer))
    if summary.examples:
        console.print(examples)
    console.print(where, highlight=False, markup=False, soft_wrap=True)


def _plain(text: str) -> Text:
    """What came from outside as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(c if c.isprintable() else " " for c in text[:EXAMPLE_CHARS]))


def _timeline(summary: Summary) -> Table:
    table = Table("from", "events", "", "mostly about", title="over time", title_justify="left")
    most = max(piece.events for piece in summary.slices)
    # Tenths of a second only where they tell rows apart.
    chars = 8 if len({piece.start_ms // 1000 for piece in summary.slices}) == len(summary.slices) else 10
    for piece in summary.slices:
        moment = datetime.fromtimestamp(piece.start_ms / 1000, tz=timezone.utc)
        bar = "█" * round(BAR_WIDTH * piece.events / most)
        table.add_row(moment.strftime("%H:%M:%S.%f")[:chars], str(piece.events), bar, piece.topic)
    return table


def _counts(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title, "events", "")
    total = max(sum(counts.values()), 1)
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(name, str(count), "█" * round(BAR_WIDTH * count / total))
    return table
