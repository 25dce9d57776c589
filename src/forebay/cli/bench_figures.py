"""Terminal output of `forebay bench serve` and `forebay bench report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from forebay.cli.output import say

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.report.document import MeasuredRun

MAX_CAUSES = 5
MAX_REMARKS = 20


def show_runs(runs: Sequence[MeasuredRun], console: Console) -> None:
    if len(runs) == 1:
        show_run(runs[0], console)
    elif runs:
        show_loads(runs, console)


def show_loads(runs: Sequence[MeasuredRun], console: Console) -> None:
    from rich.table import Table

    from forebay.bench.report.figures_table import PLUS_MINUS, has_repeats, loads, loads_table

    named = loads(runs)
    header, rows = loads_table(named)
    # Failures are printed below, with causes.
    shown = [place for place, title in enumerate(header) if title != "failed"]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place in shown:
        words = header[place] in ("load", "")
        # Titles may use two lines to fit all columns on a terminal.
        title = header[place] if words else header[place].replace(" ", "\n")
        table.add_column(title, justify="left" if words else "right", no_wrap=not words)
    for row in rows:
        table.add_row(*(row[place].replace(" ± ", "±") for place in shown))
    say(console, "")
    console.print(table)
    if has_repeats(named):
        say(console, PLUS_MINUS)
    remarks = [line for load, own in named for line in _remarks(load, own)]
    for line in remarks[:MAX_REMARKS]:
        say(console, line)
    if len(remarks) > MAX_REMARKS:
        say(console, f"and {len(remarks) - MAX_REMARKS} more")


def _remarks(load: str, own: Sequence[MeasuredRun]) -> Iterator[str]:
    for words, count in Counter(words for one in own for words in _faults(one)).items():
        yield f"{load}: {words}" + (f" ({count} runs)" if count > 1 else "")
    for words in _failures(own):
        yield f"{load}: {words}"


def show_run(measured: MeasuredRun, console: Console) -> None:
    from rich.table import Table

    from forebay.bench.report.figures_table import HEADER, NARROW, figure_rows, load_name

    figures, verdict = measured.figures, measured.verdict
    say(console, "")
    say(console, load_name(measured.run.asked), style="bold")
    if verdict is None:
        say(console, "not judged")
    else:
        say(console, verdict.word, style="green" if verdict.valid else "red")
        for words in verdict.notes:
            say(console, f"  {words}")
    for words in (*_faults(measured), *_failures([measured])):
        say(console, f"  {words}")
    failed = f", {figures.failed} failed" if figures.failed else ""
    answered = f"{figures.answered} of {figures.offered} requests answered{failed}"
    say(console, f"{answered}, {figures.duration_s:.1f} s")
    rates = [f"{figures.requests_per_s:.2f} requests/s"]
    if figures.output_tokens_per_s is not None:
        rates.append(f"{figures.output_tokens_per_s:.1f} output tokens/s")
    if figures.total_tokens_per_s is not None:
        rates.append(f"{figures.total_tokens_per_s:.1f} tokens/s with prompts")
    if figures.goodput is not None and figures.good_requests_per_s is not None:
        rates.append(f"goodput {figures.goodput:.1%}, {figures.good_requests_per_s:.2f} requests/s")
    say(console, "; ".join(rates))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place in NARROW:
        table.add_column(HEADER[place], justify="right" if place else "left", no_wrap=True)
    for row in figure_rows(figures):
        table.add_row(*(row[place] for place in NARROW))
    if table.rows:
        console.print(table)


def _faults(measured: MeasuredRun) -> Iterator[str]:
    if measured.verdict is not None:
        yield from measured.verdict.reasons
    elif not measured.run.complete:
        yield "interrupted: the figures cover what was measured until then"


def _failures(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    found = Counter(r.error for one in runs for r in one.run.records if r.error is not None)
    shown = found.most_common(MAX_CAUSES)
    for cause, count in shown:
        yield f"{count} × {cause}"
    if rest := found.total() - sum(count for _, count in shown):
        yield f"{rest} × other failures"
