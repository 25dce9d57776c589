"""`python -m benchmarks recovery` and `kafka`."""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.recovery import Recovery


class Engines(str, Enum):
    fake = "fake"
    vllm = "vllm"


class Sinks(str, Enum):
    files = "files"
    kafka = "kafka"


class Kinds(str, Enum):
    job = "job"
    engine = "engine"
    jvm = "jvm"
    flink = "flink"
    command = "command"
    broker = "broker"


class Apps(str, Enum):
    main = "main"
    sessions = "sessions"
    summary = "summary"
    topics = "topics"
    trends = "trends"


def recovery(
    *,
    kills: Annotated[int, typer.Option(min=1, help="How many kills.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the kills' kinds and moments.")] = 1,
    engine: Annotated[Engines, typer.Option(help="A scripted replica, or local vLLM.")] = Engines.fake,
    sink: Annotated[
        Sinks, typer.Option(help="Between files, or between topics of a Kafka that is killed too.")
    ] = Sinks.files,
    app: Annotated[Apps, typer.Option(help="One question per event, or an application.")] = Apps.main,
    only: Annotated[Kinds | None, typer.Option(help="Kill only this; default: all in turn.")] = None,
    events: Annotated[int | None, typer.Option(min=1, help="Events; default: enough for the kills.")] = None,
    warm: Annotated[
        bool, typer.Option(help="Kill nothing until the run has made its class archive, about a minute.")
    ] = False,
    work_dir: Annotated[Path | None, typer.Option(help="Empty folder to work in and keep.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="moto|URL",
            help="Keep state and results in an object store and resume in another empty folder each time: "
            "s3://bucket/prefix of the server that the AWS variables name, or moto, a server of its own.",
        ),
    ] = None,
    outages: Annotated[
        int, typer.Option(min=0, help="With --state moto: how many times it answers 503 or nothing for 30 s.")
    ] = 0,
    flink: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of Flink; may be repeated.")] = None,
    json: JsonFile = None,
) -> None:
    """Kill a running pipeline repeatedly. Exit status 1 unless every event gives exactly one result."""
    from benchmarks.recovery import RecoveryConfig, measure_recovery

    check_json(json)
    if only is Kinds.broker and sink is not Sinks.kafka:
        raise SettingError("--only broker: needs --sink kafka; found --sink files")
    if state is not None and sink is not Sinks.files:
        raise SettingError("--state: needs --sink files, which then are in the store")
    if outages and state != "moto":
        raise SettingError("--outages: needs --state moto: other servers cannot be stopped")

    def measure(work: Path) -> Recovery:
        config = RecoveryConfig(
            kills=kills,
            seed=seed,
            work=work,
            engine=engine.value,
            sink=sink.value,
            app=app.value,
            events=events,
            warm=warm,
            only=None if only is None else only.value,
            flink=_options(flink or []),
            state=state,
            outages=outages,
        )
        progress = ConsoleProgress(errors_console())
        return measure_recovery(config, load_settings(), progress=progress, say=note)

    if work_dir is None:
        with tempfile.TemporaryDirectory(prefix="forebay-recovery-") as folder:
            found = measure(Path(folder))
    else:
        try:
            work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"--work-dir: {work_dir} could not be created: {error.strerror}") from None
        if any(work_dir.iterdir()):
            raise SettingError(f"--work-dir {work_dir}: expected an empty folder")
        found = measure(work_dir.resolve())
    report(json, found.document(), lambda: show_recovery(found), passed=found.passed)


def kafka(
    *,
    records: Annotated[int, typer.Option(min=1000, help="Records from topic to topic.")] = 200_000,
    events: Annotated[int, typer.Option(min=100, help="Events through a scripted replica.")] = 6000,
    json: JsonFile = None,
) -> None:
    """Measure records per second between topics, and topics against files; starts a Kafka
    (FOREBAY_KAFKA_HOME)."""
    from benchmarks.kafka import KafkaOptions, measure_kafka

    check_json(json)
    found = measure_kafka(KafkaOptions(records=records, events=events), load_settings(), note)
    report(json, found, lambda: results_console().print_json(orjson.dumps(found).decode()))


def show_recovery(found: Recovery) -> None:
    document = found.document()
    names = ("events", "results", "lost", "duplicated", "dead_letters", "restored")
    counts = (*(document[name] for name in names), f"{document['kills']} of {found.run.planned}")
    show_table(("events", "results", "lost", "duplicated", "dead letters", "restored", "kills"), [counts])
    spreads = {**document["next_result_s"]["by_kind"], "all": document["next_result_s"]}
    show_table(
        ("killed", "times", "next result p50, s", "max, s"),
        (
            (kind, document["by_kind"].get(kind, document["kills"]), f"{of['p50']:.1f}", f"{of['max']:.1f}")
            for kind, of in spreads.items()
            if "p50" in of
        ),
    )
    verdict = "every event gave exactly one result" if found.passed else "NOT PASSED"
    wrong = f", {document['wrong']} lines wrong" if document["wrong"] else ""
    say(results_console(), f"{verdict}: {document['kills']} kills in {found.seconds:.0f} s{wrong}")


def _options(given: list[str]) -> dict[str, str]:
    options = dict(option.partition("=")[::2] for option in given)
    if "" in options.values():
        raise SettingError(f"--flink: expected KEY=VALUE, found {' '.join(given)}")
    return options
