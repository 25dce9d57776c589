"""`python -m benchmarks applications`: the four applications, each against a simple baseline."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError
from forebay.settings import load_settings


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
    console = errors_console()
    report = measure_applications(
        ApplicationsOptions(apps, data, tuple(file or ()), seed, engine),
        load_settings(),
        ConsoleProgress(console),
        lambda line: say(console, line),
    )
    write_json(json, report)
    if shows_text(json):
        show(report, results_console())


def show(report: dict[str, Any], console: Console) -> None:
    if report.get("topics"):
        table = Table("topics", "NMI", "ARI", "clusters", "gold", "texts/s", "with embedding", box=None)
        for name, part in report["topics"].items():
            for title, each in ((name, part), *part["baselines"].items()):
                table.add_row(
                    title if each is part else f"  {title}",
                    f"{each['nmi']:.3f}",
                    f"{each['ari']:.3f}" if "ari" in each else "–",
                    str(each.get("clusters", "–")),
                    str(each.get("gold", "–")),
                    f"{each['texts_per_s']:.0f}" if "texts_per_s" in each else "–",
                    f"{each['texts_per_s_embedded']:.0f}" if "texts_per_s_embedded" in each else "–",
                )
        console.print(table)
    if "trends" in report:
        table = Table("trends", "precision", "recall", "delay p50", "events/s", "state", box=None)
        part = report["trends"]
        for title, each in (("planted bursts", part), *part["baselines"].items()):
            delay = each["delay_s_p50"]
            table.add_row(
                title,
                f"{each['precision']:.2f}",
                f"{each['recall']:.2f}",
                "–" if delay is None or each is not part else f"{delay:.0f} s",
                f"{each['events_per_s']:.0f}" if "events_per_s" in each else "–",
                f"{each['state_mib']:.0f} MiB" if "state_mib" in each else "–",
            )
        console.print(table)
    if "summary" in report:
        part = report["summary"]
        table = Table("summaries", "close p50", "close p90", "close ratio", "tokens", "token ratio", box=None)
        for title, each in (("while windows are open", part), *part["baselines"].items()):
            own = each is part
            table.add_row(
                title,
                f"{each['close_s_p50']:.2f} s",
                f"{each['close_s_p90']:.2f} s",
                "" if own else f"{each['close_ratio']:.3f}",
                str(each["prompt_tokens"] + each["completion_tokens"]),
                "" if own else f"{each['token_ratio']:.3f}",
            )
        console.print(table)
        say(
            console,
            f"{part['engine']}: {part['events']} events in {part['windows']} windows, "
            f"{part['missed']} missed, {part['doubled']} doubled, {part['over_budget']} over their budget",
        )
    if "sessions" in report:
        table = Table(
            "sessions",
            "sessions",
            "hit share",
            "lost",
            "doubled",
            "out of order",
            "wrong",
            "seconds",
            box=None,
        )
        part = report["sessions"]
        places = (
            ("scripted replica", part),
            ("two", part.get("two_replicas")),
            ("engine", part.get("engine")),
        )
        for where, each in places:
            for title, row in () if each is None else ((where, each), *each.get("baselines", {}).items()):
                share = row["hit_share"]
                named = ("sessions", "lost", "doubled", "disorder", "wrong", "seconds")
                table.add_row(
                    title if row is each else f"  {title}",
                    str(row.get(named[0], "–")),
                    "–" if share is None else f"{share:.3f}",
                    *(str(row.get(name, "–")) for name in named[1:]),
                )
        console.print(table)
    for name, reason in report["skipped"].items():
        say(console, f"skipped: {name}: {reason}")
