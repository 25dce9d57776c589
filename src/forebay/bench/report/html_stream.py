"""Measured pipelines on a page: verdict, latency by stage, and values over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.apps.page import Child, Html, element, page, section
from forebay.bench.report.charts import (
    MILLISECONDS,
    NUMBER,
    SECONDS,
    SHARE,
    Line,
    Note,
    chart,
    figure,
    key,
    rows_chart,
    scrolled,
    shown,
    table,
    time_unit,
)
from forebay.bench.report.curves import MOST_ROWS, cumulative
from forebay.bench.report.html import MOST_SETTINGS, STYLE
from forebay.bench.report.loads import flattened
from forebay.bench.statistics import can_tell
from forebay.bench.stream.document import MeasuredStream
from forebay.bench.stream.figures import UNTIL, latency_s, stage_s, stages_of
from forebay.bench.stream.lag import lag_curve
from forebay.bench.stream.records import EventRecord, StreamRun
from forebay.counted import counted

MOST_DETAILED = 8
MOST_POINTS = 1200
PERCENTILES = (50.0, 90.0, 99.0)
GROUPS = (
    ("e", "at the source, or for the window", ("source", "read")),
    ("s", "in Flink and for a slot", ("flink", "slot")),
    ("f", "queue and prefill", ("prefill",)),
    ("a", "decode", ("decode",)),
    ("c", "for the commit", ("release", "commit")),
)
"""Colours of the parts of an event's latency, and the stages in each."""
LEAST_SLOWEST = 10
COURSES = (
    ("running", "waiting", "requests at the engine"),
    ("in_flight", "pending", "events in the operator"),
)


def stream_page(measured: Sequence[MeasuredStream], command: str, said: Sequence[str] = ()) -> str:
    """The whole page; it loads nothing and needs no script. `said`: the command's findings in words. Of many
    runs, some are shown in full."""
    run = measured[0].run
    count = sum(len(one.run.followed) for one in measured)
    lead = f"forebay bench {command} · {counted(count, run.noun)}"
    body: list[Child] = [element("p", words) for words in said]
    step = -(-len(measured) // MOST_DETAILED)
    for number, one in list(enumerate(measured))[::step]:
        name = f"Run {number + 1}: " if len(measured) > 1 else ""
        body += _run(one, name)
    rows = [*flattened(run.provenance), *(("load " + name, value) for name, value in flattened(run.asked))]
    settings = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows[:MOST_SETTINGS]
    ]
    listed = element("table", element("tbody", *settings), class_="settings")
    body.append(section("Provenance", scrolled("Provenance", listed)))
    pipeline = run.asked.get("pipeline", {}).get("name", "a pipeline")
    return page(f"Pipeline {pipeline}, end to end", f"{lead} · {run.began_at[:16]} UTC", *body, style=STYLE)


def _run(measured: MeasuredStream, name: str) -> Iterator[Html]:
    run, verdict = measured.run, measured.verdict
    lines = [element("li", words) for words in (*verdict.reasons, *verdict.notes)]
    look = "valid" if verdict.valid else "invalid"
    yield element(
        "div",
        element("b", f"{name}{'✓' if verdict.valid else '✕'} {verdict.word}"),
        element("ul", *lines),
        class_=f"verdict {look}",
        role="status",
    )
    yield _tiles(measured)
    yield section(f"{name}Where the time went", _stacked(run), _stages_table(measured), _waterfall(run))
    yield section(f"{name}Over time", element("div", *_courses(measured), class_="charts"))


def _tiles(measured: MeasuredStream) -> Html:
    figures = measured.figures
    committed = figures.latency.get("committed")
    values = [
        (f"{figures.committed:,} of {figures.offered:,}", f"{measured.run.noun}s committed"),
        (f"{figures.committed_per_s:.2f}/s", "committed"),
        (
            "–" if committed is None else shown(committed.percentiles[50], SECONDS),
            f"{measured.run.noun} to committed, p50",
        ),
        (str(figures.lost), "lost"),
        (str(figures.doubled), "doubled"),
        (str(figures.failed), "dead letters"),
    ]
    if measured.slo is not None and figures.goodput is not None:
        bound = shown(measured.slo.within_s, SECONDS)
        values.insert(0, (f"{figures.goodput:.1%}", f"goodput: {measured.slo.until} within {bound}"))
    made = (
        element("div", element("b", value), element("span", words), class_="tile") for value, words in values
    )
    return element("div", *made, class_="tiles")


def _parts(event: EventRecord) -> list[float]:
    return [sum(max(0.0, stage_s(event, name) or 0.0) for name in names) for _, _, names in GROUPS]


def slow_and_usual(run: StreamRun) -> list[tuple[str, list[EventRecord]]]:
    """Events around the median latency, and the slowest ones: one in a hundred, or `LEAST_SLOWEST`."""
    done = [event for event in run.followed if event.committed_s is not None]
    done.sort(key=lambda event: latency_s(event, "committed") or 0.0)
    if not done:
        return []
    few = max(LEAST_SLOWEST, len(done) // 100)
    middle = len(done) // 2
    usual = done[max(0, middle - few // 2) : middle + few // 2 + 1]
    return [("around the median", usual), (f"the slowest {min(few, len(done))}", done[-few:])]


def _keys() -> list[Html]:
    return [key(words, colour, block=True) for colour, words, _ in GROUPS]


def _stacked(run: StreamRun) -> Html:
    spans: dict[str, list[tuple[float, float, float]]] = {colour: [] for colour, _, _ in GROUPS}
    rows, end_s = [], 0.0
    for row, (name, events) in enumerate(slow_and_usual(run)):
        parts = [_parts(event) for event in events]
        means = [sum(each) / len(parts) for each in zip(*parts, strict=True)]
        at_s = 0.0
        for (colour, _, _), took_s in zip(GROUPS, means, strict=True):
            spans[colour] += [(4 * row + line, at_s, at_s + took_s) for line in range(3)]
            at_s += took_s
        end_s = max(end_s, at_s)
        rows.append((name, *(shown(took_s, MILLISECONDS) for took_s in (*means, at_s))))
    drawing = rows_chart(
        spans,
        max(1, 4 * len(rows) - 1),
        start=0.0,
        end=max(end_s, 1e-3),
        unit=time_unit(end_s),
        label=f"The mean time of each part of the latency, of {run.noun}s around the median and the slowest",
        x_name=f"since the {run.noun}'s own time",
    )
    header = (f"{run.noun}s", *(words for _, words, _ in GROUPS), "all")
    title = f"Parts of the latency of {run.noun}s: above, those around the median; below, the slowest"
    return figure(title, drawing, keys=_keys(), data=table("Parts", header, rows), wide=True)


def _stages_table(measured: MeasuredStream) -> Html:
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
    return table("Stages", header, rows)


def _waterfall(run: StreamRun) -> Html:
    """Single events from their own time to the commit, evenly chosen, ordered by when they were due."""
    step = -(-len(run.followed) // MOST_ROWS) or 1
    chosen = run.followed[::step]
    spans: dict[str, list[tuple[float, float, float]]] = {colour: [] for colour, _, _ in GROUPS}
    spans["b"] = []
    end_s = 1e-3
    for row, event in enumerate(chosen):
        at_s = event.due_s
        if event.committed_s is None:
            spans["b"].append((row, at_s, run.duration_s))
            end_s = max(end_s, run.duration_s)
            continue
        for (colour, _, _), took_s in zip(GROUPS, _parts(event), strict=True):
            spans[colour].append((row, at_s, at_s + took_s))
            at_s += took_s
        end_s = max(end_s, at_s)
    label = f"Single {run.noun}s from their own time to the commit"
    drawing = rows_chart(spans, len(chosen), start=0.0, end=end_s, unit=SECONDS, label=label)
    title = f"{len(chosen)} of {len(run.followed)} {run.noun}s, from their own time to the commit"
    keys = [*_keys(), key("not committed", "b", block=True)]
    return figure(title, drawing, keys=keys, wide=True)


def _courses(measured: MeasuredStream) -> Iterator[Html]:
    run = measured.run
    yield from _latencies(measured)
    due_s = sorted(event.due_s for event in run.followed)
    answered_s = sorted(each.answered_s for each in run.followed if each.answered_s is not None)
    committed_s = sorted(each.committed_s for each in run.followed if each.committed_s is not None)
    lags = [
        Line("not committed", _thinned(lag_curve(due_s, committed_s)), "c", steps=True),
        Line("not answered", _thinned(lag_curve(due_s, answered_s)), "a", steps=True),
    ]
    most = max((y for line in lags for _, y in line.points), default=0.0)
    notes = [Note(each.at_s, most, f"{each.part} killed") for each in run.kills]
    if due_s:
        yield figure(
            f"{run.noun.capitalize()}s that were due, and not there yet",
            chart(
                lags,
                label="The lag over time, to the answer and to the commit",
                x_name="time since the start",
                x_unit=SECONDS,
                y_unit=NUMBER,
                x_high=run.duration_s,
                notes=notes,
            ),
            keys=[key("to the commit", "c"), key("to the answer", "a")],
        )
    if run.checkpoints:
        points = [(each.at_s, each.duration_s) for each in run.checkpoints if each.completed]
        unit = time_unit(max((took_s for _, took_s in points), default=1.0))
        yield figure(
            f"Duration of each checkpoint, {unit.name}",
            chart(
                [Line("duration", points, "a", marks=True)],
                label="The duration of each checkpoint",
                x_name="triggered, time since the start",
                x_unit=SECONDS,
                y_unit=unit,
                x_high=run.duration_s,
            ),
        )
    for first, second, title in COURSES:
        lines = [Line(first, _sampled(run, first), "a"), Line(second, _sampled(run, second), "b")]
        if any(y > 0 for line in lines for _, y in line.points):
            yield figure(
                title,
                chart(
                    lines,
                    label=title,
                    x_name="time since the start",
                    x_unit=SECONDS,
                    y_unit=NUMBER,
                    x_high=run.duration_s,
                ),
                keys=[key(first.replace("_", " "), "a"), key(second, "b")],
            )
    if usage := _sampled(run, "kv_cache_usage"):
        yield figure(
            "KV-cache usage",
            chart(
                [Line("KV cache", usage, "a")],
                label="KV-cache usage over time",
                x_name="time since the start",
                x_unit=SECONDS,
                y_unit=SHARE,
                x_high=run.duration_s,
            ),
        )


def _latencies(measured: MeasuredStream) -> Iterator[Html]:
    run = measured.run
    found = {until: [latency_s(event, until) for event in run.followed] for until in UNTIL}
    told = {until: [each for each in values if each is not None] for until, values in found.items()}
    if not any(told.values()):
        return
    unit = time_unit(max(max(values) for values in told.values() if values))
    colours = {"answered": "a", "committed": "c"}
    lines = [Line(until, cumulative(values), colours[until]) for until, values in told.items()]
    notes = []
    if measured.slo is not None and measured.figures.goodput is not None:
        notes = [Note(measured.slo.within_s, measured.figures.goodput, "objective")]
    count = measured.figures.committed
    p99 = "" if can_tell(count, 99) else f" (of {count} {run.noun}s, too few for a p99)"
    yield figure(
        f"Share of {run.noun}s that were there within a time{p99}",
        chart(
            lines,
            label=f"Distribution of the latency of {run.noun}s",
            x_name=f"from the {run.noun}'s own time",
            x_unit=unit,
            y_unit=SHARE,
            log_x=True,
            y_high=1.0,
            notes=notes,
            # Room for the objective's label.
            room=0.2,
        ),
        keys=[key(until, colours[until]) for until in told],
    )


def _sampled(run: StreamRun, name: str) -> list[tuple[float, float]]:
    return [
        (sample.at_s, sample.values[name])
        for sample in run.samples
        if name in sample.values and sample.at_s >= 0
    ]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about `MOST_POINTS` points: the largest of each group."""
    step = -(-len(points) // MOST_POINTS) or 1
    groups = (points[begin : begin + step] for begin in range(0, len(points), step))
    return [max(group, key=lambda point: point[1]) for group in groups]
