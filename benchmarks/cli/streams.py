"""`applications`, `recovery` and `kafka`: the stateful applications, kills, and topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, errors_console, print_line, results_console
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.recovery import Recovery


def applications(
    *,
    data: Annotated[Path | None, option("Folder with the data sets.")] = None,
    app: Annotated[list[str] | None, option("topics, trends, summary or sessions; may be repeated.")] = None,
    file: Annotated[
        list[Path] | None, option("Score this labelled file: JSON lines with textCleaned and clusterNo.")
    ] = None,
    engine: Annotated[
        str | None, option("URL of an engine for summaries, otherwise a simulated one; and for sessions.")
    ] = None,
    seed: Annotated[int, option("Seed of the made-up streams.", min=0)] = 1,
    json: JsonFile = None,
) -> None:
    """Measure the stateful applications against simple baselines; skipped parts are listed."""
    from benchmarks.applications import APPLICATIONS, ApplicationsOptions, measure_applications

    common.check_report_files(json)
    common.check_known("--app", app, APPLICATIONS)
    if data is not None and not data.is_dir():
        raise SettingError(f"--data: there is no folder {data}")
    apps = app or (["topics"] if file else list(APPLICATIONS))
    if file and "topics" not in apps:
        raise SettingError("--file gives topics to score; add --app topics")
    options = ApplicationsOptions(apps, data, tuple(file or ()), seed, engine)
    found = measure_applications(options, load_settings(), ConsoleProgress(errors_console()), common.note)
    common.report(json, found, lambda: show_applications(found))


def show_applications(report: dict[str, Any]) -> None:
    if report.get("topics"):
        header = ("topics", "NMI", "ARI", "clusters", "gold", "texts/s", "with embedding")
        common.show_table(
            header,
            (
                (
                    title,
                    common.digits(each["nmi"], ".3f"),
                    common.digits(each.get("ari"), ".3f"),
                    each.get("clusters"),
                    each.get("gold"),
                    common.digits(each.get("texts_per_s"), ".0f"),
                    common.digits(each.get("texts_per_s_embedded"), ".0f"),
                )
                for name, part in report["topics"].items()
                for title, each in _with_baselines(name, part)
            ),
        )
    if "trends" in report:
        common.show_table(
            ("trends", "precision", "recall", "delay p50, s", "events/s", "state, MiB"),
            (
                *(
                    (
                        title,
                        common.digits(each["precision"], ".2f"),
                        common.digits(each["recall"], ".2f"),
                        # The baselines see the whole stream.
                        common.digits(each["delay_s_p50"], ".0f") if each is report["trends"] else None,
                        common.digits(each.get("events_per_s"), ".0f"),
                        common.digits(each.get("state_mib"), ".0f"),
                    )
                    for title, each in _with_baselines("planted bursts", report["trends"])
                ),
                (
                    "an oracle",
                    None,
                    None,
                    common.digits(report["trends"]["oracle_delay_s_p50"], ".0f"),
                    None,
                    None,
                ),
            ),
        )
    if "summary" in report:
        part = report["summary"]
        common.show_table(
            ("summaries", "close p50, s", "close p90, s", "close ratio", "tokens", "token ratio"),
            (
                (
                    title,
                    common.digits(each["close_s_p50"], ".2f"),
                    common.digits(each["close_s_p90"], ".2f"),
                    common.digits(each.get("close_ratio") if each is not part else None, ".3f"),
                    each["prompt_tokens"] + each["completion_tokens"],
                    common.digits(each.get("token_ratio") if each is not part else None, ".3f"),
                )
                for title, each in _with_baselines("while windows are open", part)
            ),
        )
        print_line(
            results_console(),
            f"{part['engine']}: {part['events']} events in {part['windows']} windows, "
            f"{part['missed']} missed, {part['doubled']} doubled, {part['over_budget']} over their budget",
        )
    if "sessions" in report:
        part = report["sessions"]
        places = {"scripted replica": part, "two": part.get("two_replicas"), "engine": part.get("engine")}
        names = ("lost", "doubled", "disorder", "wrong", "seconds")
        common.show_table(
            ("sessions", "sessions", "hit share", *names),
            (
                (title, row.get("sessions"), common.digits(row["hit_share"], ".3f"), *map(row.get, names))
                for where, each in places.items()
                if each is not None
                for title, row in _with_baselines(where, each)
            ),
        )
    for name, reason in report["skipped"].items():
        print_line(results_console(), f"skipped: {name}: {reason}")


def _with_baselines(name: str, part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield name, part
    yield from ((f"  {title}", each) for title, each in part.get("baselines", {}).items())


Killed = Literal["job", "engine", "jvm", "flink", "command", "broker"]
Apps = Literal["main", "sessions", "summary", "topics", "trends"]


def recovery(
    *,
    kills: Annotated[int, option("How many kills.", min=1)] = 20,
    seed: Annotated[int, option("Seed of the kills' kinds and moments.")] = 1,
    engine: Annotated[Literal["fake", "vllm"], option("A scripted replica, or local vLLM.")] = "fake",
    sink: Annotated[
        Literal["files", "kafka"], option("Between files, or between topics of a Kafka that is killed too.")
    ] = "files",
    app: Annotated[Apps, option("One question per event, or an application.")] = "main",
    only: Annotated[Killed | None, option("Kill only this; default: all in turn.")] = None,
    events: Annotated[int | None, option("Events; default: enough for the kills.", min=1)] = None,
    warm: Annotated[
        bool, option("Begin with the class archive that a run makes in its first minute.")
    ] = False,
    work_dir: Annotated[Path | None, option("Empty folder to work in and keep.")] = None,
    state: Annotated[
        str | None,
        option(
            "Keep state and results in an object store and resume in another empty folder each time: "
            "s3://bucket/prefix of the server that the AWS variables name, or moto, a server of its own.",
            metavar="moto|URL",
        ),
    ] = None,
    outages: Annotated[
        int, option("With --state moto: how many times it answers 503 or nothing for 30 s.", min=0)
    ] = 0,
    json: JsonFile = None,
) -> None:
    """Kill a running pipeline repeatedly. Exit status 1 unless every event gives exactly one result."""
    from benchmarks.recovery import RecoveryConfig, measure_recovery

    common.check_report_files(json)
    if only == "broker" and sink != "kafka":
        raise SettingError("--only broker: needs --sink kafka; found --sink files")
    if state is not None and sink != "files":
        raise SettingError("--state: needs --sink files, which then are in the store")
    if outages and state != "moto":
        raise SettingError("--outages: needs --state moto: other servers cannot be stopped")

    def measure(work: Path) -> Recovery:
        config = RecoveryConfig(
            kills=kills,
            seed=seed,
            work=work,
            engine=engine,
            sink=sink,
            app=app,
            events=events,
            warm=warm,
            only=only,
            state=state,
            outages=outages,
        )
        progress = ConsoleProgress(errors_console())
        return measure_recovery(config, load_settings(), progress=progress, note=common.note)

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
    common.report(json, found.document(), lambda: show_recovery(found), passed=found.passed)


def kafka(
    *,
    records: Annotated[int, option("Records from topic to topic.", min=1000)] = 200_000,
    events: Annotated[int, option("Events through a scripted replica.", min=100)] = 6000,
    json: JsonFile = None,
) -> None:
    """Measure records per second between topics, and topics against files; starts a Kafka
    (FOREBAY_KAFKA_HOME)."""
    from benchmarks.kafka import KafkaOptions, measure_kafka

    common.check_report_files(json)
    found = measure_kafka(KafkaOptions(records=records, events=events), load_settings(), common.note)
    common.report(json, found, lambda: results_console().print_json(orjson.dumps(found).decode()))


def show_recovery(found: Recovery) -> None:
    document = found.document()
    names = ("events", "results", "lost", "duplicated", "dead_letters", "restored")
    counts = (*(document[name] for name in names), f"{document['kills']} of {found.run.planned}")
    common.show_table(
        ("events", "results", "lost", "duplicated", "dead letters", "restored", "kills"), [counts]
    )
    spreads = {**document["next_result_s"]["by_kind"], "all": document["next_result_s"]}
    common.show_table(
        ("killed", "times", "next result p50, s", "max, s"),
        (
            (kind, document["by_kind"].get(kind, document["kills"]), f"{of['p50']:.1f}", f"{of['max']:.1f}")
            for kind, of in spreads.items()
            if "p50" in of
        ),
    )
    verdict = "every event gave exactly one result" if found.passed else "NOT PASSED"
    wrong = f", {document['wrong']} lines wrong" if document["wrong"] else ""
    print_line(results_console(), f"{verdict}: {document['kills']} kills in {found.seconds:.0f} s{wrong}")
