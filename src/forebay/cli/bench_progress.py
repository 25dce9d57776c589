"""What `forebay bench serve` shows: how far a run has come, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.output import say

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.client import Progress
    from forebay.bench.metrics import Distribution
    from forebay.bench.report.document import MeasuredRun

PERCENTILES = (50.0, 90.0, 99.0)
MOST_CAUSES = 5
TIMES = (
    ("ttft", "TTFT"),
    ("service_ttft", "TTFT, service"),
    ("tpot", "TPOT"),
    ("token_gap", "token gap"),
    ("longest_gap", "longest gap of a request"),
    ("e2el", "E2EL"),
    ("service_e2el", "E2EL, service"),
    ("schedule_delay", "schedule delay"),
)
"""The figures that are shown, in seconds, with their titles."""


@contextmanager
def run_progress(console: Console, runs: int) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal, nothing elsewhere. Drawn when it is told, by the event loop itself: a thread that
    draws would take the interpreter from it at any moment."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task, run, last = bar.add_task(""), 1, 0

        def tell(progress: Progress) -> None:
            nonlocal run, last
            if progress.sent < last:
                run += 1
            last = progress.sent
            in_flight = progress.sent - progress.ended
            failed = f", {progress.failed} failed" if progress.failed else ""
            words = f"{run}/{runs}: {progress.passed_s:.0f} s, {in_flight} in flight{failed}"
            bar.update(task, description=words, total=progress.requests, completed=progress.ended)
            bar.refresh()

        yield tell


def show_run(measured: MeasuredRun, console: Console) -> None:
    """One run: its verdict, its rates, and its times in milliseconds."""
    from rich.table import Table

    from forebay.bench.report.loads import load_name

    figures, verdict = measured.figures, measured.verdict
    say(console, "")
    say(console, load_name(measured.run.asked), style="bold")
    if verdict is not None:
        say(console, verdict.word, style="green" if verdict.valid else "red")
        for words in (*verdict.reasons, *verdict.notes):
            say(console, f"  {words}")
    if not measured.run.complete:
        say(console, "Interrupted: the figures are those of what was measured until then.", style="red")
    failed = f", {figures.failed} failed" if figures.failed else ""
    say(
        console,
        f"{figures.answered} of {figures.offered} requests answered{failed}, {figures.duration_s:.1f} s",
    )
    rates = [f"{figures.requests_per_s:.2f} requests/s"]
    if figures.output_tokens_per_s is not None:
        rates.append(f"{figures.output_tokens_per_s:.1f} output tokens/s")
    if figures.total_tokens_per_s is not None:
        rates.append(f"{figures.total_tokens_per_s:.1f} tokens/s with prompts")
    if figures.goodput is not None and figures.good_requests_per_s is not None:
        rates.append(f"goodput {figures.goodput:.1%}, {figures.good_requests_per_s:.2f} requests/s")
    say(console, "; ".join(rates))
    for cause, count in _causes(measured):
        say(console, f"  {count} × {cause}")
    table = Table("ms", "mean", *(f"p{percentile:g}" for percentile in PERCENTILES), "max", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, title in TIMES:
        distribution = figures.distributions.get(name)
        if distribution is not None:
            table.add_row(title, *_times(distribution))
    if table.rows:
        console.print(table)


def _times(found: Distribution) -> Iterator[str]:
    values = [found.mean, *(found.percentiles.get(number) for number in PERCENTILES), found.maximum]
    for value_s in values:
        yield "–" if value_s is None else f"{value_s * 1000:.2f}"


def _causes(measured: MeasuredRun) -> list[tuple[str, int]]:
    """What went wrong, and how often: the most frequent messages first."""
    found = Counter(record.error for record in measured.run.records if record.error is not None)
    shown = found.most_common(MOST_CAUSES)
    rest = found.total() - sum(count for _, count in shown)
    return [*shown, ("other failures", rest)] if rest else shown
