"""One run on a page: its figures, distributions, values over time and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from forebay.apps.page import Child, Html, element, joined, section
from forebay.bench.metrics import PERCENTILES, RunFigures, output_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.report.charts import (
    LOG_FROM,
    MILLISECONDS,
    NUMBER,
    SECONDS,
    SHARE,
    Line,
    Note,
    Unit,
    chart,
    figure,
    key,
    rows_chart,
    scrolled,
    shown,
    table,
    time_unit,
)
from forebay.bench.report.curves import (
    Points,
    courses,
    cumulative,
    first_tokens,
    percentages,
    response_and_service,
    share_within,
    signals,
    tokens_and_gaps,
    waterfall,
)
from forebay.bench.report.document import MeasuredRun
from forebay.bench.report.figures_table import HEADER, figure_rows, headline, or_dash
from forebay.bench.statistics import can_tell, percentile

MOST_SIGNALS = 8
SLOWEST = 8
TIMES = 12
"""Rows of a table of a chart over time."""
MOST_ERRORS = 12
FAR = 1.25
"""An objective more than this many times the longest time is not drawn: the curve would be too narrow."""
SAME = 0.01
"""Response and service times are one line if their curves differ by no more than this share of the longest
time."""

SIGNALS = {
    "kv_cache_usage": ("KV-cache usage", SHARE),
    "prefix_cache_hit_share": ("share of prompt tokens from the prefix cache", SHARE),
    "preemptions": ("preemptions since the start", NUMBER),
}
"""Signals that come first, with their titles; others follow under their own names."""
SUFFIXES = {
    "_memory_mb": (": memory, MB", NUMBER),
    "_cores": (": cores kept busy", NUMBER),
    "_power_w": (": power, W", NUMBER),
    "_busy": (": share of the time busy", SHARE),
}
"""Titles of a process's or GPU's signals, after its name."""
TOTALS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
"""Totals since the start, drawn in other ways."""


def tiles(figures: RunFigures) -> Html:
    made = (
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in headline(figures)
    )
    return element("div", *made, class_="tiles")


def run_parts(measured: MeasuredRun, heading: str) -> Iterator[Html]:
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
        yield element("p", "The file with the requests is missing.", class_="soft")
        return
    drawn = list(_distributions(measured))
    if drawn:
        yield part("Distributions", element("div", *drawn, class_="charts"))
    over_time = list(_over_time(run))
    if over_time:
        yield part("Over time", element("div", *over_time, class_="charts"))
    yield part("Requests", _waterfall(run), _slowest(run))


def _figures_table(measured: MeasuredRun) -> Html:
    few = "A percentile is left out if fewer than ten samples lie beyond it: a p99 needs 1,000."
    return joined([table("Figures", HEADER, figure_rows(measured.figures)), element("p", few, class_="soft")])


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
    return scrolled("Failures", element("table", element("tbody", *rows)))


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
    """The share of samples up to each value; a second line if service times differ."""
    if not values:
        return
    ordered, sent = sorted(values), sorted(service)
    apart = bool(sent) and _apart(ordered, sent)
    middle = percentile(ordered, 50)
    unit = time_unit(max(middle, ordered[-1] / 20))
    # Chunks read together have gaps of 0: a few tiny values must not decide about the axis.
    quarter = percentile(ordered, 25)
    wide = quarter > 0 and percentile(ordered, 99) / quarter >= LOG_FROM
    floor = max(percentile(ordered, 5), quarter / 10)
    drawn = [max(value, floor) for value in ordered] if wide else ordered
    lines = [Line("response", cumulative(drawn), "a")]
    keys = []
    if sent:
        keys.append(
            key("from when it was due" if apart else "from when it was due; from when sent the same", "a")
        )
    if apart:
        lines.insert(
            0, Line("service", cumulative([max(v, floor) for v in sent] if wide else sent), "s", dashed=True)
        )
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
        for p in PERCENTILES
        if can_tell(len(ordered), p)
    ]
    header = ("", "response", "service") if sent else ("", name)
    drawing = chart(
        lines,
        label=f"Share of requests by {name}: " + ", ".join(note.words for note in notes) + kept,
        x_name=name,
        x_unit=unit,
        y_unit=SHARE,
        log_x=wide,
        y_high=1.0,
        notes=notes,
        room=0.27,
    )
    yield figure(title, drawing, keys=keys, data=table(f"{title} in numbers", header, rows))


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
            dashed = name == "waiting"
            busy.append(Line(words, own.pop(name), colour, dashed=dashed))
            keys.append(key(words, colour, dashed=dashed))
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
        data = table(f"{title} in numbers", ("at", *(line.name for line in lines)), told)
    else:
        data = table(f"{title} in numbers", ("from", "median"), rows)
    return figure(title, drawing, keys=keys, data=data)


def _medians(dots: Points, end_s: float, unit: Unit) -> list[tuple[str, str]]:
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
    """When each request was due, sent, first answered and done, ordered by when it was due."""
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
    drawing = rows_chart(
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
    return joined([element("h3", "The slowest"), table("The slowest requests", header, rows)])


def _request_row(record: RequestRecord) -> list[str]:
    figures = request_figures(record)
    assert figures is not None
    count = output_tokens(record)
    return [
        str(record.index),
        shown(record.due_s, SECONDS),
        shown(figures.schedule_delay_s, MILLISECONDS),
        or_dash(figures.ttft_s, MILLISECONDS),
        or_dash(figures.tpot_s, MILLISECONDS),
        or_dash(max(figures.chunk_gaps_s, default=None), MILLISECONDS),
        shown(figures.e2el_s, MILLISECONDS),
        "–" if count is None else str(count),
    ]
