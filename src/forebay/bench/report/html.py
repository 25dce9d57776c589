"""The page of a report: one HTML file that loads nothing and needs no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone

from forebay.apps.page import Child, Html, element, page, section
from forebay.bench.report import charts
from forebay.bench.report.aiperf import wall_clock_ns
from forebay.bench.report.charts import scrolled
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.html_run import run_parts, tiles
from forebay.bench.report.html_sweep import sweep
from forebay.bench.report.loads import flattened, kind, load_name, loads
from forebay.counted import counted

MOST_DETAILED = 8
"""Runs of a sweep that are shown with all their charts."""
MOST_SETTINGS = 200
MOST_REASONS = 12
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


def report_page(report: Report) -> str:
    """The whole page. Its size is bounded: curves are thinned out; of many runs some are shown in full."""
    many = len(report.runs) > 1
    body: list[Child] = [_verdicts(report.runs)]
    if many:
        body += [sweep(report.runs), _details(report.runs)]
    else:
        measured = report.runs[0]
        body += [tiles(measured.figures), *run_parts(measured, "h2")]
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


def _verdicts(runs: Sequence[MeasuredRun]) -> Html:
    invalid = [one for one in runs if one.word == "INVALID"]
    word = "INVALID" if invalid else "VALID" if all(one.word for one in runs) else "not judged"
    said = f" — {len(invalid)} of {len(runs)} runs" if invalid and len(runs) > 1 else ""
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
        element("li", reason if count == 1 else f"{reason} ({count} runs)")
        for reason, count in list(same.items())[:MOST_REASONS]
    ]
    if len(same) > MOST_REASONS:
        lines.append(element("li", f"and {len(same) - MOST_REASONS} more"))
    sign = {"VALID": "✓ ", "INVALID": "✕ "}.get(word, "")
    look = {"VALID": "valid", "INVALID": "invalid"}.get(word, "unknown")
    listed = element("ul", *lines) if lines else None
    return element("div", element("b", sign + word), said, listed, class_=f"verdict {look}", role="status")


def _details(runs: Sequence[MeasuredRun]) -> Html:
    step = -(-len(runs) // MOST_DETAILED)
    names = {id(one): name for name, own in loads(runs) for one in own}
    chosen = list(enumerate(runs))[::step]
    shown_ = "each run" if step == 1 else f"{len(chosen)} of {len(runs)} runs, evenly chosen"
    folded = []
    for number, measured in chosen:
        title = " · ".join(filter(None, (f"run {number + 1}", names[id(measured)], measured.word)))
        folded.append(
            element(
                "details",
                element("summary", title),
                tiles(measured.figures),
                *run_parts(measured, "h3"),
                class_="run",
            )
        )
    return section(f"In full: {shown_}", *folded)


def _provenance(runs: Sequence[MeasuredRun]) -> Html:
    """The origin of the figures, from the first run."""
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
    return section("Provenance", of, scrolled("Provenance", listed))


def _meanings() -> Html:
    lines = (
        ("TTFT", "time to the first token with content"),
        ("TPOT", "time per output token: (last − first token) / (tokens − 1)"),
        ("ITL", "inter-token latency; here as the mean of a request, and as single gaps"),
        ("E2EL", "end-to-end latency: to the last token"),
        ("response", "counted from when the request was due, which includes any wait at the client"),
        ("service", "counted from when it was sent, as most tools do"),
        ("schedule delay", "from due to sent; if it is long, the client was too slow"),
        ("goodput", "share of all offered requests that were answered within every objective"),
    )
    body = (
        element("tr", element("th", name, scope="row"), element("td", words, class_="words"))
        for name, words in lines
    )
    return section("Words", element("table", element("tbody", *body)))
