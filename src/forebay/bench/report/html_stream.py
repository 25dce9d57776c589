"""Measured pipelines on a page: verdict, latency by stage, and values over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay.bench.report.curves import MAX_ROWS, cumulative
from forebay.bench.report.html import settings_table
from forebay.bench.statistics import suffices
from forebay.bench.stream.document import MeasuredStream
from forebay.bench.stream.figures import UNTIL, lag_curve, latency_s, stage_s, stages_of
from forebay.bench.stream.records import EventRecord, StreamRun
from forebay.pages.charts import Figure, Layer, Line, Note, Table, share_figure, span_figure, time_figure
from forebay.pages.render import page
from forebay.pages.svg import Colour
from forebay.pages.units import MILLISECONDS, SECONDS, SHARE, shown, time_unit
from forebay.untrusted_text import counted

MAX_DETAILED = 8
MAX_POINTS = 1200
PERCENTILES = (50.0, 90.0, 99.0)
GROUPS: Sequence[tuple[Colour, str, Sequence[str]]] = (
    ("gold", "at the source, or for the window", ("source", "read")),
    ("soft", "in Flink and for a slot", ("flink", "slot")),
    ("faint", "queue and prefill", ("prefill",)),
    ("blue", "decode", ("decode",)),
    ("green", "for the commit", ("release", "commit")),
)
MIN_SLOWEST = 10
COURSES = (
    ("running", "waiting", "requests at the engine"),
    ("in_flight", "pending", "events in the operator"),
)


def stream_page(measured: Sequence[MeasuredStream], command: str, findings: Sequence[str] = ()) -> str:
    run = measured[0].run
    count = sum(len(one.run.followed) for one in measured)
    step = -(-len(measured) // MAX_DETAILED)
    pipeline = run.asked.get("pipeline", {}).get("name", "a pipeline")
    return page(
        "stream.html.j2",
        title=f"Pipeline {pipeline}, end to end",
        lead=f"forebay bench {command} · {counted(count, run.noun)} · {run.began_at[:16]} UTC",
        findings=findings,
        runs=[
            (f"Run {number + 1}: " if len(measured) > 1 else "", _run_view(one))
            for number, one in list(enumerate(measured))[::step]
        ],
        provenance=settings_table(run.provenance, run.asked),
    )


def _run_view(measured: MeasuredStream) -> dict[str, Any]:
    run, verdict = measured.run, measured.verdict
    return {
        "look": "valid" if verdict.valid else "invalid",
        "word": verdict.word,
        "lines": (*verdict.reasons, *verdict.notes),
        "tiles": _tiles(measured),
        "parts": _stacked(run),
        "stages": _stages_table(measured),
        "waterfall": _waterfall(run),
        "courses": list(_courses(measured)),
    }


def _tiles(measured: MeasuredStream) -> list[tuple[str, str]]:
    figures, noun = measured.figures, measured.run.noun
    committed = figures.latency.get("committed")
    values = [
        (f"{figures.committed:,} of {figures.offered:,}", f"{noun}s committed"),
        (f"{figures.committed_per_s:.2f}/s", "committed"),
        (
            "–" if committed is None else shown(committed.percentiles[50], SECONDS),
            f"{noun} to committed, p50",
        ),
        (str(figures.lost), "lost"),
        (str(figures.doubled), "doubled"),
        (str(figures.failed), "dead letters"),
    ]
    if measured.slo is not None and figures.goodput is not None:
        bound = shown(measured.slo.within_s, SECONDS)
        values.insert(0, (f"{figures.goodput:.1%}", f"goodput: {measured.slo.until} within {bound}"))
    return values


def _parts(event: EventRecord) -> list[float]:
    return [sum(max(0.0, stage_s(event, name) or 0.0) for name in names) for _, _, names in GROUPS]


def slow_and_usual(run: StreamRun) -> list[tuple[str, list[EventRecord]]]:
    """Events around the median latency, and the slowest percent, at least `MIN_SLOWEST`."""
    done = [event for event in run.followed if event.committed_s is not None]
    done.sort(key=lambda event: latency_s(event, "committed") or 0.0)
    if not done:
        return []
    few = max(MIN_SLOWEST, len(done) // 100)
    middle = len(done) // 2
    usual = done[max(0, middle - few // 2) : middle + few // 2 + 1]
    return [("around the median", usual), (f"the slowest {min(few, len(done))}", done[-few:])]


def _stacked(run: StreamRun) -> Figure:
    groups = slow_and_usual(run)
    means: list[list[float]] = []
    for _, events in groups:
        parts = [_parts(event) for event in events]
        means.append([sum(each) / len(parts) for each in zip(*parts, strict=True)])
    layers = [
        Layer(words, colour, [(row, sum(own[:part]), sum(own[: part + 1])) for row, own in enumerate(means)])
        for part, (colour, words, _) in enumerate(GROUPS)
    ]
    end_s = max(map(sum, means), default=0.0)
    rows = [
        (name, *(shown(took_s, MILLISECONDS) for took_s in (*own, sum(own))))
        for (name, _), own in zip(groups, means, strict=True)
    ]
    return span_figure(
        f"Parts of the latency of {run.noun}s",
        layers,
        len(groups),
        start=0.0,
        end=max(end_s, 1e-3),
        unit=time_unit(end_s),
        label=f"The mean time of each part of the latency, of {run.noun}s around the median and the slowest",
        x_name=f"since the {run.noun}'s own time",
        names=[name for name, _ in groups],
        data=Table("Parts", (f"{run.noun}s", *(words for _, words, _ in GROUPS), "all"), rows),
    )


def _stages_table(measured: MeasuredStream) -> Table:
    figures = measured.figures
    header = ("ms", "mean", *(f"p{number:g}" for number in PERCENTILES), "max")
    found = [(f"event time to {name}", each) for name, each in figures.latency.items()]
    stages = stages_of(measured.run).items()
    found += [(words, figures.stages[name]) for name, (_, _, words) in stages if name in figures.stages]
    if "duration_s" in figures.checkpoint:
        found.append(("a checkpoint", figures.checkpoint["duration_s"]))
    if figures.watermark_delay is not None:
        found.append(("watermark behind the clock", figures.watermark_delay))
    rows = []
    for name, one in found:
        values = [one.mean, *(one.percentiles.get(number) for number in PERCENTILES), one.maximum]
        rows.append((name, *("–" if each is None else f"{each * 1000:.1f}" for each in values)))
    return Table("Stages", header, rows)


def _waterfall(run: StreamRun) -> Figure:
    step = -(-len(run.followed) // MAX_ROWS) or 1
    chosen = run.followed[::step]
    spans: list[list[tuple[float, float, float]]] = [[] for _ in GROUPS]
    uncommitted = []
    end_s = 1e-3
    for row, event in enumerate(chosen):
        at_s = event.due_s
        if event.committed_s is None:
            uncommitted.append((float(row), at_s, run.duration_s))
            end_s = max(end_s, run.duration_s)
            continue
        for own, took_s in zip(spans, _parts(event), strict=True):
            own.append((row, at_s, at_s + took_s))
            at_s += took_s
        end_s = max(end_s, at_s)
    layers = [Layer(words, colour, own) for (colour, words, _), own in zip(GROUPS, spans, strict=True)]
    return span_figure(
        f"{len(chosen)} of {len(run.followed)} {run.noun}s, from their own time to the commit",
        [*layers, Layer("not committed", "red", uncommitted)],
        len(chosen),
        start=0.0,
        end=end_s,
        unit=SECONDS,
        label=f"Single {run.noun}s from their own time to the commit",
    )


def _courses(measured: MeasuredStream) -> Iterator[Figure]:
    run = measured.run

    yield from _latencies(measured)
    due_s = sorted(event.due_s for event in run.followed)
    answered_s = sorted(each.answered_s for each in run.followed if each.answered_s is not None)
    committed_s = sorted(each.committed_s for each in run.followed if each.committed_s is not None)
    lags = [
        Line("to the commit", _thinned(lag_curve(due_s, committed_s)), "green", steps=True),
        Line("to the answer", _thinned(lag_curve(due_s, answered_s)), "blue", steps=True),
    ]
    most = max((y for line in lags for _, y in line.points), default=0.0)
    if due_s:
        title = f"{run.noun.capitalize()}s that were due, and not there yet"
        notes = [Note(each.at_s, most, f"{each.part} killed") for each in run.kills]
        label = "The lag over time, to the answer and to the commit"
        yield time_figure(title, lags, run.duration_s, label=label, notes=notes)
    if run.checkpoints:
        points = [(each.at_s, each.duration_s) for each in run.checkpoints if each.completed]
        unit = time_unit(max((took_s for _, took_s in points), default=1.0))
        title = f"Duration of each checkpoint, {unit.name}, by when it was triggered"
        yield time_figure(title, [Line("", points, marks=True)], run.duration_s, unit)
    for first, second, title in COURSES:
        lines = [
            Line(first.replace("_", " "), _sampled(run, first), "blue"),
            Line(second, _sampled(run, second), "red"),
        ]
        if any(y > 0 for line in lines for _, y in line.points):
            yield time_figure(title, lines, run.duration_s)
    if usage := _sampled(run, "kv_cache_usage"):
        yield time_figure("KV-cache usage", [Line("", usage)], run.duration_s, SHARE)


def _latencies(measured: MeasuredStream) -> Iterator[Figure]:
    run = measured.run
    found = {until: [latency_s(event, until) for event in run.followed] for until in UNTIL}
    known = {until: [each for each in values if each is not None] for until, values in found.items()}
    if not any(known.values()):
        return
    colours: dict[str, Colour] = {"answered": "blue", "committed": "green"}
    notes = []
    if measured.slo is not None and measured.figures.goodput is not None:
        notes = [Note(measured.slo.within_s, measured.figures.goodput, "objective")]
    count = measured.figures.committed
    p99 = "" if suffices(count, 99) else f" (of {count} {run.noun}s, too few for a p99)"
    yield share_figure(
        f"Share of {run.noun}s that were there within a time{p99}",
        [Line(until, cumulative(values), colours[until]) for until, values in known.items()],
        label=f"Distribution of the latency of {run.noun}s",
        x_name=f"from the {run.noun}'s own time",
        x_unit=time_unit(max(max(values) for values in known.values() if values)),
        log_x=True,
        notes=notes,
        room=0.2,  # For the objective's label.
    )


def _sampled(run: StreamRun, name: str) -> list[tuple[float, float]]:
    return [
        (sample.at_s, sample.values[name])
        for sample in run.samples
        if name in sample.values and sample.at_s >= 0
    ]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // MAX_POINTS) or 1
    groups = (points[begin : begin + step] for begin in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]
