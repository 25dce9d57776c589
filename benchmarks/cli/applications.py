"""`python -m benchmarks applications`: the four applications, each against a simple baseline."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cli.options import digits, note, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say
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
    options = ApplicationsOptions(apps, data, tuple(file or ()), seed, engine)
    found = measure_applications(options, load_settings(), ConsoleProgress(errors_console()), note)
    report(json, found, lambda: show(found))


def show(report: dict[str, Any]) -> None:
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
