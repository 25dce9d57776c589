"""The page of a report: one HTML file that loads nothing and needs no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from statistics import fmean

from forebay.apps.page import Child, Html, counted, element, joined, page, section
from forebay.bench.metrics import RunFigures, output_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.report import charts
from forebay.bench.report.aiperf import wall_clock_ns
from forebay.bench.report.charts import Line, Note, Unit, chart, figure, key, shown, table, time_unit
from forebay.bench.report.curves import (
    Points,
    courses,
    cumulative,
    first_tokens,
    knee,
    percentages,
    response_and_service,
    share_within,
    signals,
    tokens_and_gaps,
    waterfall,
)
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.figures_table import HEADER, figure_rows, headline, or_dash
from forebay.bench.report.loads import flattened, kind, load_name, loads
from forebay.bench.statistics import mean_interval, percentile

MOST_DETAILED = 8
"""Of a sweep, so many runs are shown with all their drawings."""
MOST_ROWS = 400
MOST_SETTINGS = 200
MOST_SIGNALS = 8
SLOWEST = 8
TIMES = 12
"""Rows of a table of what is drawn over time."""
MOST_ERRORS = 12
SHARE = Unit("%", 100.0)
NUMBER = Unit("")
SECONDS = Unit("s")
FAR = 1.25
"""An objective beyond so many times the longest time is told and not drawn: the curve would be too narrow."""
SAME = 0.01
"""Response and service times are one line where their curves are never further apart than so much of the
longest."""

STYLE = (
    charts.STYLE
    + """
header{margin-bottom:8px}
.verdict{border-left:5px solid var(--c);padding:8px 14px;background:var(--card);margin:16px 0;
border-radius:0 8px 8px 0}
.verdict.invalid{border-color:var(--b)}.verdict.unknown{border-color:var(--soft)}.verdict b{font-size:17px}
.verdict ul{margin-top:2px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(146px,1fr));gap:10px;margin:16px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:9px 13px}
.tile b{display:block;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.25}
.tile span{display:block;color:var(--soft);font-size:13px;line-height:1.35}
table{border-collapse:separate;border-spacing:0;font-variant-numeric:tabular-nums;font-size:14px;margin:6px 0}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left;position:sticky;left:0;background:var(--back)}
td.words,th.words{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:220px}
thead th{color:var(--soft);font-weight:500}tbody th{font-weight:500}
.settings td{text-align:left;white-space:pre-wrap;overflow-wrap:anywhere;font:13px ui-monospace,monospace}
.settings th{padding-right:20px;vertical-align:top;position:static}
.run>summary{font-size:16px;color:var(--ink);font-weight:600;padding:10px 0;border-top:1px solid var(--line)}
tbody th{vertical-align:top}h3{margin-top:22px}.bad{color:var(--b)}
@media(max-width:600px){body{padding:16px 14px 40px}h1{font-size:22px}.tile b{font-size:18px}
.tiles{grid-template-columns:repeat(2,1fr)}}
@media print{details{display:block}}
"""
)

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL"))
SIGNALS = {
    "kv_cache_usage": ("KV-cache usage", SHARE),
    "prefix_cache_hit_share": ("share of prompt tokens from the prefix cache", SHARE),
    "preemptions": ("preemptions since the start", NUMBER),
}
"""Those that come first, with their titles; others follow under their own names."""
SUFFIXES = {
    "_memory_mb": (": memory, MB", NUMBER),
    "_cores": (": cores kept busy", NUMBER),
    "_power_w": (": power, W", NUMBER),
    "_busy": (": share of the time busy", SHARE),
}
"""Titles of what is told of a process or a GPU, after its name."""
TOTALS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
"""Counts since the start: what they tell is drawn otherwise."""


def report_page(report: Report) -> str:
    """The whole page. Its size is bounded: curves are thinned out; of many runs some are shown in full."""
    many = len(report.runs) > 1
    body: list[Child] = [_verdicts(report.runs)]
    if many:
        body += [_sweep(report.runs), _details(report.runs)]
    else:
        measured = report.runs[0]
        body += [_tiles(measured.figures), *_run(measured, "h2")]
    body.append(_provenance(report.runs))
    body.append(_meanings())
    return page(_title(report), _lead(report), *body, style=STYLE)


def _title(report: Report) -> str:
    models = list(dict.fromkeys(str(one.run.provenance.get("model", "")) for one in report.runs))
    named = ", ".join(model for model in models[:3] if model)
    return f"Benchmark of {named}" if named else "Benchmark"


def _lead(report: Report) -> str:
    run = report.runs[0].run
    try:
        at = datetime.fromtimestamp(wall_clock_ns(run.began_at) / 1e9, timezone.utc)
        began = at.strftime("%-d %B %Y, %H:%M UTC")
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


def _verdicts(runs: Sequence[MeasuredRun]) -> Html:
    """VALID or INVALID, and why, for all runs together."""
    invalid = [one for one in runs if one.word == "INVALID"]
    word = "INVALID" if invalid else "VALID" if all(one.word for one in runs) else "not judged"
    said = f" — {len(invalid)} of {len(runs)} runs" if invalid and len(runs) > 1 else ""
    verdicts = [(one, one.verdict) for one in runs if one.verdict is not None]
    found = [(one, reason) for one, verdict in verdicts for reason in verdict.reasons]
    if len(runs) == 1:
        found += [(one, note) for one, verdict in verdicts for note in verdict.notes]
    found += [
        (one, "interrupted: it has what was measured until then") for one in runs if not one.run.complete
    ]
    same = Counter(
        reason if len(runs) == 1 else f"{load_name(one.run.asked)}: {reason}" for one, reason in found
    )
    lines = [
        element("li", reason if count == 1 else f"{reason} ({count} runs)")
        for reason, count in list(same.items())[:MOST_ERRORS]
    ]
    if len(same) > MOST_ERRORS:
        lines.append(element("li", f"and {len(same) - MOST_ERRORS} more"))
    sign = {"VALID": "✓ ", "INVALID": "✕ "}.get(word, "")
    look = {"VALID": "valid", "INVALID": "invalid"}.get(word, "unknown")
    listed = element("ul", *lines) if lines else None
    return element("div", element("b", sign + word), said, listed, class_=f"verdict {look}", role="status")


def _tiles(figures: RunFigures) -> Html:
    """The figures that are asked for first."""
    made = (
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in headline(figures)
    )
    return element("div", *made, class_="tiles")


def _run(measured: MeasuredRun, heading: str) -> Iterator[Html]:
    """All of one run: figures, distributions, its course, its requests."""
    run = measured.run

    def part(title: str, *children: Child) -> Html:
        return (
            section(title, *children) if heading == "h2" else element("div", element("h3", title), *children)
        )

    yield part("Figures", _figures_table(measured))
    failures = _failures(run)
    if failures is not None:
        yield part("Failures", failures)
    if not run.records:
        yield element("p", "The requests themselves are not beside the document.", class_="soft")
        return
    drawn = list(_distributions(measured))
    if drawn:
        yield part("Distributions", element("div", *drawn, class_="charts"))
    over_time = list(_over_time(run))
    if over_time:
        yield part("Over time", element("div", *over_time, class_="charts"))
    yield part("Requests", _waterfall(run), _slowest(run))


def _figures_table(measured: MeasuredRun) -> Html:
    few = "A percentile is left out where fewer than ten samples lie beyond it: a p99 needs 1,000."
    return joined([table(HEADER, figure_rows(measured.figures)), element("p", few, class_="soft")])


def _failures(run: LoadRun) -> Html | None:
    errors = Counter(record.error for record in run.records if record.error is not None)
    if not errors:
        return None
    rows = [
        element("tr", element("th", f"{count:,}", scope="row"), element("td", words, class_="words"))
        for words, count in errors.most_common(MOST_ERRORS)
    ]
    if len(errors) > MOST_ERRORS:
        rows.append(element("tr", element("th", "…"), element("td", f"{len(errors)} kinds in all")))
    return element(
        "div", element("table", element("tbody", *rows)), class_="scroll", tabindex="0", role="group"
    )


def _distributions(measured: MeasuredRun) -> Iterator[Html]:
    run, slo = measured.run, measured.slo
    tpot, gaps, chunk_gaps = tokens_and_gaps(run)
    ttft_bound, tpot_bound, e2el_bound = (slo.ttft_s, slo.tpot_s, slo.e2el_s) if slo else (None, None, None)
    yield from _cdf("TTFT", "time to first token", *response_and_service(run, "ttft"), bound=ttft_bound)
    yield from _cdf("TPOT", "time per output token", tpot, bound=tpot_bound)
    if gaps:
        yield from _cdf("Gaps between tokens", "gap between tokens", gaps)
    else:
        yield from _cdf("Gaps between chunks", "gap between chunks", chunk_gaps)
    yield from _cdf("E2EL", "end-to-end latency", *response_and_service(run, "e2el"), bound=e2el_bound)


def _cdf(
    title: str,
    name: str,
    values: Sequence[float],
    service: Sequence[float] = (),
    *,
    bound: float | None = None,
) -> Iterator[Html]:
    """The share of samples up to each value; a second line where service times are others."""
    if not values:
        return
    ordered, sent = sorted(values), sorted(service)
    apart = bool(sent) and _apart(ordered, sent)
    middle = percentile(ordered, 50)
    unit = time_unit(max(middle, ordered[-1] / 20))
    lines = [Line("response", cumulative(ordered), "a")]
    keys = []
    if sent:
        keys.append(
            key("from when it was due" if apart else "from when it was due; from when sent the same", "a")
        )
    if apart:
        lines.insert(0, Line("service", cumulative(sent), "s", dashed=True))
        keys.append(key("from when it was sent", "s", dashed=True))
    told = [(p, percentile(ordered, p)) for p in percentages(len(ordered))]
    notes = [Note(value, p / 100, f"p{p:g} {shown(value, unit)}") for p, value in told]
    kept = ""
    if bound is not None:
        if bound <= ordered[-1] * FAR:
            lines.append(Line("objective", [(bound, 0.0), (bound, 1.0)], "b", dashed=True))
        keys.append(
            key(
                f"objective: {share_within(ordered, bound):.1%} within {shown(bound, unit)}", "b", dashed=True
            )
        )
        kept = f"; {share_within(ordered, bound):.1%} are within the objective"
    rows = [
        (
            f"p{p:g}",
            shown(percentile(ordered, p), unit),
            *([shown(percentile(sent, p), unit)] if sent else []),
        )
        for p in (1, 5, 10, 25, 50, 75, *(p for p in (90, 95, 99) if len(ordered) * (100 - p) >= 1000))
    ]
    header = ("", "response", "service") if sent else ("", name)
    drawing = chart(
        lines,
        label=f"Share of requests by {name}: " + ", ".join(note.words for note in notes) + kept,
        x_name=name,
        x_unit=unit,
        y_unit=SHARE,
        log_x=True,
        y_high=1.0,
        notes=notes,
        room=0.27,
    )
    yield figure(title, drawing, keys=keys, data=table(header, rows))


def _apart(ordered: Sequence[float], sent: Sequence[float]) -> bool:
    places = [percentile(ordered, p) - percentile(sent, p) for p in range(5, 100, 5)]
    return max(map(abs, places)) > SAME * percentile(ordered, 95)


def _over_time(run: LoadRun) -> Iterator[Html]:
    found = courses(run)
    if found is None:
        return
    own = signals(run)
    busy = [Line("in flight", found.in_flight, "a", steps=True)]
    keys = [key("in flight, as the client counts", "a")]
    for name, words, colour in (("running", "running in the engine", "c"), ("waiting", "waiting there", "b")):
        if name in own:
            busy.append(Line(words, own.pop(name), colour))
            keys.append(key(words, colour))
    yield _course("Requests", busy, run, NUMBER, keys)
    rates = [
        Line("due", found.due_per_s, "f", steps=True),
        Line("answered", found.answered_per_s, "a", steps=True),
    ]
    keys = [key("due", "f"), key("answered", "a")]
    yield _course("Requests per second", rates, run, NUMBER, keys)
    yield _course("Output tokens per second", [Line("tokens", found.tokens_per_s, steps=True)], run, NUMBER)
    dots = first_tokens(run)
    if dots:
        unit = time_unit(max(y for _, y in dots))
        title = f"TTFT of each request, {unit.name}, by when it was due"
        yield _course(title, [], run, unit, dots=dots, rows=_medians(dots, run.duration_s, unit))
    for name in [name for name in {**SIGNALS, **own} if name in own and name not in TOTALS][:MOST_SIGNALS]:
        title, unit = _signal(name)
        if any(value for _, value in own[name]):
            yield _course(title[:1].upper() + title[1:], [Line(title, own[name])], run, unit)


def _signal(name: str) -> tuple[str, Unit]:
    """The title and the unit of a signal."""
    for suffix, (words, unit) in SUFFIXES.items():
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix).replace("_", " ").replace("gpu", "GPU ") + words, unit
    return SIGNALS.get(name, (name.replace("_", " "), NUMBER))


def _course(
    title: str,
    lines: Sequence[Line],
    run: LoadRun,
    unit: Unit,
    keys: Sequence[Html] = (),
    *,
    dots: Sequence[tuple[float, float]] = (),
    rows: Sequence[tuple[str, str]] = (),
) -> Html:
    values = [y for line in lines for _, y in line.points] or [y for _, y in dots]
    words = f"{title} over {shown(run.duration_s)} s: at most {shown(max(values, default=0.0), unit)}"
    drawing = chart(
        lines,
        label=words,
        x_name="time since the start",
        x_unit=SECONDS,
        y_unit=unit,
        x_high=run.duration_s,
        dots=dots,
        log_y=bool(dots),
    )
    if lines:
        every = [run.duration_s * i / TIMES for i in range(TIMES)]
        told = [
            (shown(at_s, SECONDS), *(or_dash(_at(line.points, at_s), unit) for line in lines))
            for at_s in every
        ]
        data = table(("at", *(line.name for line in lines)), told)
    else:
        data = table(("from", "median"), rows)
    return figure(title, drawing, keys=keys, data=data)


def _medians(dots: Points, end_s: float, unit: Unit) -> list[tuple[str, str]]:
    """The median of the dots in each of some equal parts of the time."""
    parts: list[list[float]] = [[] for _ in range(TIMES)]
    for at_s, value in dots:
        parts[min(int(at_s / end_s * TIMES), TIMES - 1)].append(value)
    return [
        (shown(end_s * number / TIMES, SECONDS), or_dash(percentile(sorted(own), 50) if own else None, unit))
        for number, own in enumerate(parts)
    ]


def _at(points: Sequence[tuple[float, float]], at_s: float) -> float | None:
    """The last value at or before a time."""
    return next((y for x, y in reversed(points) if x <= at_s + 1e-9), None)


def _waterfall(run: LoadRun) -> Html:
    """When each request was due, sent, first answered and done, from top to bottom by when it was due."""
    rows = waterfall(run)
    spans: dict[str, list[tuple[float, float, float]]] = {"b": [], "f": [], "a": [], "e": []}
    for row, record in enumerate(rows):
        sent_s = record.ended_s if record.sent_s is None else record.sent_s
        last_s = record.chunks[-1].at_s if record.chunks else record.ended_s
        if sent_s > record.due_s:
            spans["e"].append((row, record.due_s, sent_s))
        if not record.answered:
            spans["b"].append((row, sent_s, record.ended_s))
            continue
        first_s = record.chunks[0].at_s if record.chunks else record.ended_s
        spans["f"].append((row, sent_s, first_s))
        spans["a"].append((row, first_s, last_s))
    drawing = charts.rows_chart(
        spans,
        len(rows),
        start=min(record.due_s for record in rows),
        end=max(record.ended_s for record in rows),
        unit=SECONDS,
        label="When each request was due, sent, first answered and done",
    )
    keys = [
        key("due, not sent", "e", block=True),
        key("sent, no token yet", "f", block=True),
        key("tokens coming", "a", block=True),
        key("failed", "b", block=True),
    ]
    chosen = "each request" if len(rows) == len(run.records) else f"the {len(rows)} around the slowest"
    return figure(f"From due to done: {chosen}", drawing, keys=keys, wide=True)


def _slowest(run: LoadRun) -> Html | None:
    told = [(figures.e2el_s, record) for record in run.records if (figures := request_figures(record))]
    if not told:
        return None
    told.sort(key=lambda one: (-one[0], one[1].index))
    rows = [_request_row(record) for _, record in told[:SLOWEST]]
    header = ("request", "due at", "schedule delay", "TTFT", "TPOT", "longest gap", "E2EL", "tokens")
    return joined([element("h3", "The slowest"), table(header, rows)])


def _request_row(record: RequestRecord) -> list[str]:
    figures = request_figures(record)
    assert figures is not None
    unit = time_unit(figures.e2el_s / 4)
    small = Unit("ms", 1000.0)
    count = output_tokens(record)
    return [
        str(record.index),
        shown(record.due_s, SECONDS),
        shown(figures.schedule_delay_s, small),
        or_dash(figures.ttft_s, unit),
        or_dash(figures.tpot_s, small),
        or_dash(max(figures.chunk_gaps_s, default=None), small),
        shown(figures.e2el_s, unit),
        "–" if count is None else str(count),
    ]


def _sweep(runs: Sequence[MeasuredRun]) -> Html:
    """All loads side by side: curves of throughput and latency, and a table."""
    named = loads(runs)
    drawings = [
        drawing
        for name, words in LATENCIES
        if (drawing := _throughput_latency(named, name, words)) is not None
    ]
    curves = element("div", *drawings, class_="charts") if drawings else None
    return section("Loads", curves, _loads_table(named))


def _throughput_latency(
    named: Sequence[tuple[str, Sequence[MeasuredRun]]], name: str, words: str
) -> Html | None:
    """Latency by throughput, a point a load; none of a single load."""
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
    lines = [Line("median", [(rate, median) for rate, median, _, _ in points], "a", marks=True)]
    keys = [key("median", "a")]
    tails = [(rate, high) for rate, _, high, _ in points if high is not None]
    if len(tails) == len(points):
        lines.append(Line("p90", tails, "s", dashed=True, marks=True))
        keys.append(key("p90", "s", dashed=True))
    bend = knee([(rate, median) for rate, median, _, _ in points])
    notes = []
    if bend is not None:
        rate, median, _, load = points[bend]
        notes.append(Note(rate, median, f"knee: {load}", ring=True))
    drawing = chart(
        lines,
        label=f"{words} by throughput" + (f"; its knee is at {points[bend][3]}" if bend is not None else ""),
        x_name="requests/s answered",
        x_unit=NUMBER,
        y_unit=unit,
        notes=notes,
        room=0.12,
    )
    return figure(f"{words}, {unit.name}, by throughput", drawing, keys=keys)


def _loads_table(named: Sequence[tuple[str, Sequence[MeasuredRun]]]) -> Html:
    named = named[:MOST_ROWS]
    columns: list[tuple[str, list[list[float | None]], Unit]] = [
        (
            "requests/s",
            [[one.figures.requests_per_s for one in own] for _, own in named],
            NUMBER,
        ),
        (
            "output tokens/s",
            [[one.figures.output_tokens_per_s for one in own] for _, own in named],
            NUMBER,
        ),
    ]
    for name, words in LATENCIES:
        medians = [[_median(one, name) for one in own] for _, own in named]
        told = [value for values in medians for value in values if value is not None]
        unit = time_unit(max(told, default=0.0))
        columns.append((f"{words} p50, {unit.name}", medians, Unit("", unit.scale)))
    columns.append(
        ("goodput, %", [[one.figures.goodput for one in own] for _, own in named], Unit("", 100.0))
    )
    rows = [
        (
            load,
            len(own),
            _words(own),
            *(_over_repeats(values[number], unit) for _, values, unit in columns),
            f"{sum(one.figures.failed for one in own):,}",
        )
        for number, (load, own) in enumerate(named)
    ]
    header = ("load", "runs", "", *(name for name, _, _ in columns), "failed")
    repeated = any(len(own) > 1 for _, own in named)
    words = "± is half of the 95 % confidence interval of the mean over repeats (Student's t)."
    return joined([table(header, rows), element("p", words, class_="soft") if repeated else None])


def _words(own: Sequence[MeasuredRun]) -> str:
    """The verdict on repeats of one load."""
    invalid = sum(one.word == "INVALID" for one in own)
    if invalid:
        return "INVALID" if invalid == len(own) else f"{invalid} INVALID"
    return "VALID" if all(one.word for one in own) else "–"


def _median(measured: MeasuredRun, name: str) -> float | None:
    found = measured.figures.distributions.get(name)
    return None if found is None else found.percentiles.get(50)


def _over_repeats(values: Sequence[float | None], unit: Unit) -> str:
    told = [value for value in values if value is not None]
    if not told or len(told) < len(values):
        return "–"
    interval = mean_interval(told)
    if interval is None:
        return shown(told[0], unit)
    return f"{shown(interval.mean, unit)} ± {shown((interval.high - interval.low) / 2, unit, digits=2)}"


def _details(runs: Sequence[MeasuredRun]) -> Html:
    """Runs in full, folded; of many, some."""
    step = -(-len(runs) // MOST_DETAILED)
    chosen = list(enumerate(runs))[::step]
    shown_ = "each run" if step == 1 else f"{len(chosen)} of {len(runs)} runs, evenly chosen"
    folded = []
    for number, measured in chosen:
        title = " · ".join(filter(None, (f"run {number + 1}", load_name(measured.run.asked), measured.word)))
        folded.append(
            element(
                "details",
                element("summary", title),
                _tiles(measured.figures),
                *_run(measured, "h3"),
                class_="run",
            )
        )
    return section(f"In full: {shown_}", *folded)


def _provenance(runs: Sequence[MeasuredRun]) -> Html:
    """Where the figures come from: what all runs share, as the first has it."""
    run = runs[0].run
    rows = [
        *flattened(run.provenance),
        *(("load " + name, value) for name, value in flattened(run.asked)),
    ]
    body = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows[:MOST_SETTINGS]
    ]
    listed = element("table", element("tbody", *body), class_="settings")
    of = (
        None
        if len(runs) == 1
        else element("p", "Of the first run; the document has those of each.", class_="soft")
    )
    return section("Provenance", of, element("div", listed, class_="scroll", tabindex="0", role="group"))


def _meanings() -> Html:
    """The words of the page."""
    lines = (
        ("TTFT", "time to the first token with content"),
        ("TPOT", "time per output token: (last − first token) / (tokens − 1)"),
        ("ITL", "inter-token latency; here as the mean of a request, and as single gaps"),
        ("E2EL", "end-to-end latency: to the last token"),
        ("response", "counted from when the request was due, which includes any wait at the client"),
        ("service", "counted from when it was sent, as most tools do"),
        ("schedule delay", "from due to sent; where it is long, the client was too slow"),
        ("goodput", "share of all offered requests that were answered within every objective"),
    )
    body = (
        element("tr", element("th", name, scope="row"), element("td", words, class_="words"))
        for name, words in lines
    )
    return section("Words", element("table", element("tbody", *body)))
