"""Measures the stateful applications on real data and on streams with planted events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bursts import BurstPlan
from benchmarks.clusterings import MISSING, is_installed
from benchmarks.sessions import SessionsPlan, measure_sessions
from benchmarks.summaries import measure_chats
from benchmarks.topics import measure_topics, read_labelled
from benchmarks.trends import measure_fight, measure_trends
from forebay.apps.topics.embedding import ensure_embedding_model
from forebay.apps.topics.minilm import MiniLM
from forebay.engine.launch import Progress
from forebay.errors import SetupError
from forebay.settings import Settings

APPLICATIONS = ("topics", "trends", "summary", "sessions")
TOPIC_FILES = ("mstream_tweets.jsonl", "mstream_news_t.jsonl")
FIGHT_FILE = "tweets_fight_2017.jsonl"
CHATS = "irc_ubuntu"
EMBEDDING_THREADS = 2


@dataclass(frozen=True, slots=True)
class ApplicationsOptions:
    """`files`: labelled files to score instead of those of `data`."""

    apps: Sequence[str] = APPLICATIONS
    data: Path | None = None
    files: Sequence[Path] = ()
    seed: int = 1
    engine: str | None = None
    plan: BurstPlan = field(default_factory=BurstPlan)


def measure_applications(
    options: ApplicationsOptions, settings: Settings, progress: Progress, note: Callable[[str], None]
) -> dict[str, Any]:
    """One document with a part per application; `skipped` has the reason for each part that was not
    measured."""
    skipped: dict[str, str] = {}
    report: dict[str, Any] = {"seed": options.seed}
    if "topics" in options.apps:
        report["topics"] = _topics(options, settings, progress, note, skipped)
    if "trends" in options.apps:
        plan = BurstPlan(**{**_fields(options.plan), "seed": options.seed})
        report["trends"] = measure_trends(plan, note=note)
        fight = options.data / FIGHT_FILE if options.data else None
        if fight is not None and fight.is_file():
            report["trends"]["fight"] = measure_fight(fight)
        else:
            skipped[FIGHT_FILE] = "not there; --data names its folder"
    if "summary" in options.apps:
        chats = options.data / CHATS if options.data else None
        if chats is not None and chats.is_dir():
            report["summary"] = measure_chats(chats, options.engine, skipped, note)
        else:
            skipped[CHATS] = "not there; --data names its folder"
    if "sessions" in options.apps:
        report["sessions"] = measure_sessions(SessionsPlan(seed=options.seed), options.engine, skipped, note)
    return {**report, "skipped": skipped}


def _fields(plan: BurstPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def _topics(
    options: ApplicationsOptions,
    settings: Settings,
    progress: Progress,
    note: Callable[[str], None],
    skipped: dict[str, str],
) -> dict[str, Any]:
    files = list(options.files)
    if not files:
        for name in TOPIC_FILES:
            path = options.data / name if options.data else None
            if path is not None and path.is_file():
                files.append(path)
            else:
                skipped[name] = "not there; --data names its folder"
    streams = [read_labelled(path) for path in files]
    if streams and not is_installed():
        skipped["river"] = MISSING
    if not streams:
        return {}
    try:
        model = MiniLM(ensure_embedding_model(settings, progress), threads=EMBEDDING_THREADS)
    except SetupError as error:
        skipped.update((stream.name, f"no embedding model: {error}") for stream in streams)
        return {}
    return {stream.name: measure_topics(stream, model.embed, note=note, river=True) for stream in streams}
