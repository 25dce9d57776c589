"""`applications`, `recovery` and `kafka`: the stateful applications, kills, and topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from benchmarks.cli.options import digits, note, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.recovery import Recovery


class Application(str, Enum):
    topics = "topics"
    trends = "trends"
    summary = "summary"
    sessions = "sessions"


def applications(
    *,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets.")] = None,
    app: Annotated[list[Application] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(help="Score this labelled file: JSON lines with textCleaned and clusterNo."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="URL of an engine for summaries, otherwise a simulated one; and for sessions."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the made-up streams.")] = 1,
    json: JsonFile = None,
) -> None:
    """Measure the stateful applications against simple baselines; skipped parts are listed."""
    from benchmarks.applications import APPLICATIONS, ApplicationsOptions, measure_applications

    check_json(json)
    if data is not None and not data.is_dir():
        raise SettingError(f"--data: there is no folder {data}")
    apps = [each.value for each in app] if app else ["topics"] if file else list(APPLICATIONS)
    if file and "topics" not in apps:
        raise SettingError("--file gives topics to score; add --app topics")
    options = ApplicationsOptions(apps, data, tuple(file or ()), seed, engine)
    found = measure_applications(options, load_settings(), ConsoleProgress(errors_console()), note)
    report(json, found, lambda: show_applications(found))


def show_applications(report: dict[str, Any]) -> None:
    if report.get("topics"):
        header = ("topics", "NMI", "ARI", "clusters", "gold", "texts/s", "with embedding")
        show_table(
            header,
            (
                (
                    title,
                    digits(each["nmi"], ".3f"),
                    digits(each.get("ari"), ".3f"),
                    each.get("clusters"),
                    each.get("gold"),
                    digits(each.get("texts_per_s"), ".0f"),
                    digits(each.get("texts_per_s_embedded"), ".0f"),
                )
                for name, part in report["topics"].items()
                for title, each in _with_baselines(name, part)
            ),
        )
    if "trends" in report:
        show_table(
            ("trends", "precision", "recall", "delay p50, s", "events/s", "state, MiB"),
            (
                (
                    title,
                    digits(each["precision"], ".2f"),
                    digits(each["recall"], ".2f"),
                    # The baselines see the whole stream.
                    digits(each["delay_s_p50"], ".0f") if each is report["trends"] else None,
                    digits(each.get("events_per_s"), ".0f"),
                    digits(each.get("state_mib"), ".0f"),
                )
                for title, each in _with_baselines("planted bursts", report["trends"])
            ),
        )
    if "summary" in report:
        part = report["summary"]
        show_table(
            ("summaries", "close p50, s", "close p90, s", "close ratio", "tokens", "token ratio"),
            (
                (
                    title,
                    digits(each["close_s_p50"], ".2f"),
                    digits(each["close_s_p90"], ".2f"),
                    digits(each.get("close_ratio") if each is not part else None, ".3f"),
                    each["prompt_tokens"] + each["completion_tokens"],
                    digits(each.get("token_ratio") if each is not part else None, ".3f"),
                )
                for title, each in _with_baselines("while windows are open", part)
            ),
        )
        say(
            results_console(),
            f"{part['engine']}: {part['events']} events in {part['windows']} windows, "
            f"{part['missed']} missed, {part['doubled']} doubled, {part['over_budget']} over their budget",
        )
    if "sessions" in report:
        part = report["sessions"]
        places = {"scripted replica": part, "two": part.get("two_replicas"), "engine": part.get("engine")}
        names = ("lost", "doubled", "disorder", "wrong", "seconds")
        show_table(
            ("sessions", "sessions", "hit share", *names),
            (
                (title, row.get("sessions"), digits(row["hit_share"], ".3f"), *map(row.get, names))
                for where, each in places.items()
                if each is not None
                for title, row in _with_baselines(where, each)
            ),
        )
    for name, reason in report["skipped"].items():
        say(results_console(), f"skipped: {name}: {reason}")


def _with_baselines(name: str, part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield name, part
    yield from ((f"  {title}", each) for title, each in part.get("baselines", {}).items())


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
