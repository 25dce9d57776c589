"""One run on a page: its figures, distributions, values over time and requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from forebay.bench.metrics import PERCENTILES, output_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
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
from forebay.bench.statistics import percentile, suffices
from forebay.pages.axes import LOG_FROM
from forebay.pages.charts import Figure, Layer, Line, Note, Table, share_figure, span_figure, time_figure
from forebay.pages.units import MILLISECONDS, NUMBER, SECONDS, SHARE, Unit, shown, time_unit

MAX_SIGNALS = 8
SLOWEST = 8
TIMES = 12
MAX_ERRORS = 12
FAR = 1.25
"""An objective beyond this many times the longest time is not drawn."""
SAME = 0.01
"""Times that differ by less than this share of the longest are drawn as one line."""

SIGNALS = {
    "kv_cache_usage": ("KV-cache usage", SHARE),
    "prefix_cache_hit_share": ("share of prompt tokens from the prefix cache", SHARE),
    "preemptions": ("preemptions since the start", NUMBER),
}
SUFFIXES = {
    "_memory_mb": (": memory, MB", NUMBER),
    "_cores": (": cores kept busy", NUMBER),
    "_power_w": (": power, W", NUMBER),
    "_busy": (": share of the time busy", SHARE),
}
TOTALS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


def run_view(measured: MeasuredRun) -> dict[str, Any]:
    """What the template shows of a run; without its requests, only the figures."""
    run, figures = measured.run, measured.figures
    return {
        "tiles": [(value, name) for name, value in headline(figures)],
        "figures": Table("Figures", HEADER, list(figure_rows(figures))),
        "failures": _failures(run),
        "recorded": bool(run.records),
        "distributions": list(_distributions(measured)),
        "over_time": list(_over_time(run)),
        "waterfall": _waterfall(run) if run.records else None,
        "slowest": _slowest(run),
    }


def _failures(run: LoadRun) -> Table | None:
    errors = Counter(record.error for record in run.records if record.error is not None)
    rows = [(f"{count:,}", words) for words, count in errors.most_common(MAX_ERRORS)]
    if len(errors) > MAX_ERRORS:
        rows.append(("…", f"{len(errors)} kinds in all"))
    return Table("Failures", (), rows) if rows else None


def _distributions(measured: MeasuredRun) -> Iterator[Figure]:
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
) -> Iterator[Figure]:
    if not values:
        return
    ordered, sent = sorted(values), sorted(service)
    apart = bool(sent) and _apart(ordered, sent)
    middle = percentile(ordered, 50)
    unit = time_unit(max(middle, ordered[-1] / 20))
    # Chunks read together have gaps of 0: a few tiny values must not determine the axis.
    quarter = percentile(ordered, 25)
    wide = quarter > 0 and percentile(ordered, 99) / quarter >= LOG_FROM
    floor = max(percentile(ordered, 5), quarter / 10)
    drawn = [max(value, floor) for value in ordered] if wide else ordered
    same = sent and not apart
    name_due = "from when it was due; from when sent the same" if same else "from when it was due"
    lines = [Line(name_due if sent else "", cumulative(drawn), "blue")]
    if apart:
        sent_drawn = [max(value, floor) for value in sent] if wide else sent
        lines.append(Line("from when it was sent", cumulative(sent_drawn), "soft", look="dash"))
    notes = [
        Note(percentile(ordered, p), p / 100, f"p{p:g} {shown(percentile(ordered, p), unit)}")
        for p in percentages(len(ordered))
    ]
    label = f"Share of requests by {name}: " + ", ".join(note.words for note in notes)
    if bound is not None:
        within = f"{share_within(ordered, bound):.1%}"
        near = bound <= ordered[-1] * FAR
        points = [(bound, 0.0), (bound, 1.0)] if near else []
        lines.append(Line(f"objective: {within} within {shown(bound, unit)}", points, "red", look="dash"))
        label += f"; {within} are within the objective"
    rows = [
        (f"p{p:g}", *(shown(percentile(each, p), unit) for each in ((ordered, sent) if sent else (ordered,))))
        for p in PERCENTILES
        if suffices(len(ordered), p)
    ]
    data = Table(f"{title} in numbers", ("", "response", "service") if sent else ("", name), rows)
    yield share_figure(
        title, lines, label=label, x_name=name, x_unit=unit, log_x=wide, notes=notes, room=0.27, data=data
    )


def _apart(ordered: Sequence[float], sent: Sequence[float]) -> bool:
    places = [percentile(ordered, p) - percentile(sent, p) for p in range(5, 100, 5)]
    return max(map(abs, places)) > SAME * percentile(ordered, 95)


def _over_time(run: LoadRun) -> Iterator[Figure]:
    found = courses(run)
    if found is None:
        return
    own = signals(run)
    busy = [Line("in flight, as the client counts", found.in_flight, "blue", steps=True)]
    if "running" in own:
        busy.append(Line("running in the engine", own.pop("running"), "green"))
    if "waiting" in own:
        busy.append(Line("waiting there", own.pop("waiting"), "red", look="dash"))
    yield _course("Requests", busy, run, NUMBER)
    answered = Line("answered", found.answered_per_s, steps=True)
    rates = [answered, Line("due", found.due_per_s, "faint", steps=True)]
    yield _course("Requests per second", rates, run, NUMBER)
    yield _course("Output tokens per second", [Line("", found.tokens_per_s, steps=True)], run, NUMBER)
    dots = first_tokens(run)
    if dots:
        unit = time_unit(max(y for _, y in dots))
        title = f"TTFT of each request, {unit.name}, by when it was due"
        rows = _medians(dots, run.duration_s, unit)
        yield _course(title, [Line("", dots, look="dots")], run, unit, rows=rows)
    for name in [name for name in {**SIGNALS, **own} if name in own and name not in TOTALS][:MAX_SIGNALS]:
        title, unit = _signal(name)
        if any(value for _, value in own[name]):
            yield _course(title[:1].upper() + title[1:], [Line("", own[name])], run, unit)


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
    *,
    rows: Sequence[tuple[str, ...]] = (),
) -> Figure:
    header: tuple[str, ...] = ("from", "median")
    if not rows:
        header = ("at", *(line.name or title for line in lines))
        every = [run.duration_s * number / TIMES for number in range(TIMES)]
        rows = [
            (shown(at_s, SECONDS), *(or_dash(_at(line.points, at_s), unit) for line in lines))
            for at_s in every
        ]
    data = Table(f"{title} in numbers", header, rows)
    return time_figure(title, lines, run.duration_s, unit, data=data)


def _medians(dots: Points, end_s: float, unit: Unit) -> list[tuple[str, str]]:
    parts: list[list[float]] = [[] for _ in range(TIMES)]
    for at_s, value in dots:
        parts[min(int(at_s / end_s * TIMES), TIMES - 1)].append(value)
    return [
        (shown(end_s * number / TIMES, SECONDS), or_dash(percentile(sorted(own), 50) if own else None, unit))
        for number, own in enumerate(parts)
    ]


def _at(points: Sequence[tuple[float, float]], at_s: float) -> float | None:
    return next((y for x, y in reversed(points) if x <= at_s + 1e-9), None)


def _waterfall(run: LoadRun) -> Figure:
    rows = waterfall(run)
    unsent, no_token, tokens, failed = (list[tuple[float, float, float]]() for _ in range(4))
    for row, record in enumerate(rows):
        sent_s = record.ended_s if record.sent_s is None else record.sent_s
        last_s = record.chunks[-1].at_s if record.chunks else record.ended_s
        if sent_s > record.due_s:
            unsent.append((row, record.due_s, sent_s))
        if not record.answered:
            failed.append((row, sent_s, record.ended_s))
            continue
        first_s = record.chunks[0].at_s if record.chunks else record.ended_s
        no_token.append((row, sent_s, first_s))
        tokens.append((row, first_s, last_s))
    chosen = "each request" if len(rows) == len(run.records) else f"the {len(rows)} around the slowest"
    return span_figure(
        f"From due to done: {chosen}",
        [
            Layer("due, not sent", "gold", unsent),
            Layer("sent, no token yet", "faint", no_token),
            Layer("tokens coming", "blue", tokens),
            Layer("failed", "red", failed),
        ],
        len(rows),
        start=min(record.due_s for record in rows),
        end=max(record.ended_s for record in rows),
        unit=SECONDS,
        label="When each request was due, sent, first answered and done",
    )


def _slowest(run: LoadRun) -> Table | None:
    found = [(figures.e2el_s, record) for record in run.records if (figures := request_figures(record))]
    if not found:
        return None
    found.sort(key=lambda one: (-one[0], one[1].index))
    header = ("request", "due at", "schedule delay", "TTFT", "TPOT", "longest gap", "E2EL", "tokens")
    return Table("The slowest requests", header, [_request_row(record) for _, record in found[:SLOWEST]])


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
