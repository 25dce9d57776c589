"""The page of a report: one HTML file that loads nothing and needs no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from statistics import fmean
from typing import Any

from forebay.bench.report.curves import knee
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.figures_table import (
    LATENCIES,
    PLUS_MINUS,
    Loads,
    concurrency,
    flattened,
    has_repeats,
    kind,
    load_name,
    load_of,
    loads,
    loads_table,
    rate_per_s,
    target_of,
)
from forebay.bench.report.formats import wall_clock_ns
from forebay.bench.report.html_run import run_view
from forebay.pages.charts import Figure, Key, Line, Note, Table, line_figure
from forebay.pages.render import page
from forebay.pages.units import NUMBER, time_unit
from forebay.untrusted_text import counted

MAX_ROWS = 400
MAX_SERIES = 4
"""Curves of a sweep, one per target and workload."""
MAX_LEFT_OUT = 8


def sweep_view(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    named = loads(runs)
    believed, left_out = _believed(named)
    series = _series(believed)
    curves = [
        drawn
        for target, own in list(series.items())[:MAX_SERIES]
        for name, words in LATENCIES
        if (drawn := _throughput_latency(own, name, f"{words}, {target}" if len(series) > 1 else words))
        is not None
    ]
    more = f" and {len(left_out) - MAX_LEFT_OUT} more" if len(left_out) > MAX_LEFT_OUT else ""
    shown = named[:MAX_ROWS]
    return {
        "curves": curves,
        "left_out": ", ".join(left_out[:MAX_LEFT_OUT]) + more,
        "loads": Table("Loads", *loads_table(shown)),
        "note": PLUS_MINUS if has_repeats(shown) else "",
    }


def _believed(named: Loads) -> tuple[Loads, list[str]]:
    kept, left_out = [], []
    for load, own in named:
        valid = [one for one in own if one.word != "INVALID"]
        if valid:
            kept.append((load, valid))
        if len(valid) < len(own):
            some = f" ({len(own) - len(valid)} of {len(own)} runs)" if valid else ""
            left_out.append(load + some)
    return kept, left_out


def _series(named: Loads) -> dict[str, list[tuple[str, Sequence[MeasuredRun]]]]:
    found: dict[str, tuple[str, list[tuple[str, Sequence[MeasuredRun]]]]] = {}
    for load, own in named:
        asked = own[0].run.asked
        if rate_per_s(asked) is None and concurrency(asked) is None:
            continue
        schedule = kind(asked, "schedule")
        rest = {name: value for name, value in load_of(asked).items() if name not in ("schedule", "requests")}
        key = repr((target_of(asked), schedule, sorted(flattened(rest))))
        name = f"{target_of(asked)} {schedule}".strip()
        found.setdefault(key, (name, []))[1].append((load, own))
    return {
        f"{name} {number}" if number > 1 else name: own
        for number, (name, own) in enumerate(found.values(), 1)
    }


def _throughput_latency(named: Loads, name: str, words: str) -> Figure | None:
    points = []
    for load, own in named:
        found = [one.figures.distributions[name] for one in own if name in one.figures.distributions]
        rate = fmean(one.figures.requests_per_s for one in own)
        if found:
            tail = [one.percentiles[90] for one in found if 90 in one.percentiles]
            high = fmean(tail) if len(tail) == len(found) else None
            points.append((rate, fmean(one.percentiles[50] for one in found), high, load))
    if len(points) < 2:
        return None
    points.sort(key=lambda one: one[0])
    unit = time_unit(max(median for _, median, _, _ in points))
    medians = [(rate, median) for rate, median, _, _ in points]
    lines = [Line("median", medians, "blue", marks=True)]
    tails = [(rate, high) for rate, _, high, _ in points if high is not None]
    if len(tails) == len(points):
        lines.append(Line("p90", tails, "soft", look="dash", marks=True))
    bend = knee(medians)
    at = "" if bend is None else points[bend][3]
    drawn = line_figure(
        f"{words}, {unit.name}, by throughput",
        lines,
        label=f"{words} by throughput" + (f"; its knee is at {at}" if at else ""),
        x_name="requests/s answered",
        x_unit=NUMBER,
        y_unit=unit,
        notes=[] if bend is None else [Note(*medians[bend], "knee", ring=True)],
        room=0.12,
    )
    return replace(drawn, keys=[*drawn.keys, Key(f"knee: {at}", None)]) if at else drawn


MAX_DETAILED = 8
MAX_SETTINGS = 200
MAX_REASONS = 12
MEANINGS = (
    ("TTFT", "time to the first token with content"),
    ("TPOT", "time per output token: (last − first token) / (tokens − 1)"),
    ("ITL", "inter-token latency; here as the mean of a request, and as single gaps"),
    ("E2EL", "end-to-end latency: to the last token"),
    ("response", "counted from when the request was due, which includes any wait at the client"),
    ("service", "counted from when it was sent, as most tools do"),
    ("schedule delay", "from due to sent; if it is long, the client was too slow"),
    ("goodput", "share of all offered requests that were answered within every objective"),
)


def report_page(report: Report) -> str:
    runs = report.runs
    many = len(runs) > 1
    detailed = _detailed(runs)
    return page(
        "report.html.j2",
        title=_title(report),
        lead=_lead(report),
        verdict=_verdicts(runs),
        sweep=sweep_view(runs) if many else None,
        detailed=detailed,
        chosen="each run"
        if len(detailed) == len(runs)
        else f"{len(detailed)} of {len(runs)} runs, evenly chosen",
        provenance=settings_table(runs[0].run.provenance, runs[0].run.asked),
        meanings=Table("Words", (), MEANINGS),
    )


def settings_table(provenance: Mapping[str, Any], asked: Mapping[str, Any]) -> Table:
    rows = [*flattened(provenance), *(("load " + name, value) for name, value in flattened(asked))]
    return Table("Provenance", (), rows[:MAX_SETTINGS])


def _title(report: Report) -> str:
    models = list(dict.fromkeys(str(one.run.provenance.get("model", "")) for one in report.runs))
    named = ", ".join(model for model in models[:3] if model)
    return f"Benchmark of {named}" if named else "Benchmark"


def _lead(report: Report) -> str:
    run = report.runs[0].run
    try:
        at = datetime.fromtimestamp(wall_clock_ns(run.began_at) / 1e9, timezone.utc)
        began = f"{at.day} {at:%B %Y, %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        began = run.began_at
    requests = sum(one.figures.offered for one in report.runs)
    names = list(dict.fromkeys(load_name(one.run.asked) for one in report.runs))
    load = names[0] if len(names) == 1 else counted(len(names), "load")
    schedule = kind(run.asked, "schedule")
    parts = [
        f"forebay bench {report.command}",
        load if schedule in ("unknown", load) else f"{load} ({schedule})",
        counted(len(report.runs), "run") if len(report.runs) > 1 else "",
        counted(requests, "request"),
        began,
    ]
    return " · ".join(part for part in parts if part)


def _verdicts(runs: Sequence[MeasuredRun]) -> tuple[str, str, Sequence[str], str]:
    invalid = [one for one in runs if one.word == "INVALID"]
    word = "INVALID" if invalid else "VALID" if all(one.word for one in runs) else "not judged"
    share = f" — {len(invalid)} of {len(runs)} runs" if invalid and len(runs) > 1 else ""
    verdicts = [(one, one.verdict) for one in runs if one.verdict is not None]
    found = [(one, reason) for one, verdict in verdicts for reason in verdict.reasons]
    if len(runs) == 1:
        found += [(one, note) for one, verdict in verdicts for note in verdict.notes]
    found += [
        (one, "interrupted: shows what was measured until then") for one in runs if not one.run.complete
    ]
    same = Counter(
        reason if len(runs) == 1 else f"{load_name(one.run.asked)}: {reason}" for one, reason in found
    )
    lines = [
        reason if count == 1 else f"{reason} ({count} runs)"
        for reason, count in list(same.items())[:MAX_REASONS]
    ]
    if len(same) > MAX_REASONS:
        lines.append(f"and {len(same) - MAX_REASONS} more")
    return {"VALID": "valid", "INVALID": "invalid"}.get(word, "unknown"), word, lines, share


def _detailed(runs: Sequence[MeasuredRun]) -> list[tuple[str, dict[str, Any]]]:
    step = -(-len(runs) // MAX_DETAILED)
    names = {id(one): name for name, own in loads(runs) for one in own}
    chosen = list(enumerate(runs))[::step]
    return [
        (" · ".join(filter(None, (f"run {number + 1}", names[id(one)], one.word))), run_view(one))
        for number, one in chosen
    ]
