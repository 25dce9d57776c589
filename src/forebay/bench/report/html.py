"""The page of a report: one HTML file that loads nothing and needs no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from forebay.bench.report.aiperf import wall_clock_ns
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.html_run import run_view
from forebay.bench.report.html_sweep import sweep_view
from forebay.bench.report.loads import flattened, kind, load_name, loads
from forebay.pages.charts import Table
from forebay.pages.render import page
from forebay.untrusted_text import counted

MAX_DETAILED = 8
"""Runs of a sweep that are shown with all their charts."""
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
    """The whole page. Its size is bounded: curves are thinned out; of many runs some are shown in full."""
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
    """The origin of a run's figures."""
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
    """How it looks, the verdict in a word, its reasons, and of how many runs it is."""
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
    """At most `MAX_DETAILED` runs, evenly chosen, with their titles."""
    step = -(-len(runs) // MAX_DETAILED)
    names = {id(one): name for name, own in loads(runs) for one in own}
    chosen = list(enumerate(runs))[::step]
    return [
        (" · ".join(filter(None, (f"run {number + 1}", names[id(one)], one.word))), run_view(one))
        for number, one in chosen
    ]
