"""Terminal output of measured requests: progress, figures, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.output import print_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from forebay.bench.client import LoadProgress
    from forebay.bench.report.document import MeasuredRun

MAX_CAUSES = 5
MAX_REMARKS = 20


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function that draws a text, the total and what is done, on the caller's thread."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("")

        def draw(text: str, total: int, done: int) -> None:
            bar.update(task, description=text, total=total, completed=done)
            bar.refresh()

        yield draw


@contextmanager
def run_progress(console: Console, runs: int) -> Iterator[Callable[[LoadProgress], None] | None]:
    if not console.is_terminal:
        yield None
        return
    run, last = 1, 0
    with progress_bar(console) as draw:

        def show(progress: LoadProgress) -> None:
            nonlocal run, last
            if progress.sent < last:
                run += 1
            last = progress.sent
            failed = f", {progress.failed} failed" if progress.failed else ""
            in_flight = f"{progress.sent - progress.ended} in flight{failed}"
            draw(f"{run}/{runs}: {progress.passed_s:.0f} s, {in_flight}", progress.requests, progress.ended)

        yield show


def figures_table(header: Sequence[str], rows: Iterable[Iterable[str]], wrapped: Sequence[int] = ()) -> Table:
    """A table with numbers to the right, except in the first column and those that are wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, title in enumerate(header):
        left = place == 0 or place in wrapped
        table.add_column(title, justify="left" if left else "right", no_wrap=place not in wrapped)
    for row in rows:
        table.add_row(*row)
    return table


def show_runs(runs: Sequence[MeasuredRun], console: Console) -> None:
    if len(runs) == 1:
        show_run(runs[0], console)
    elif runs:
        show_loads(runs, console)


def show_loads(runs: Sequence[MeasuredRun], console: Console) -> None:
    from forebay.bench.report.figures_table import PLUS_MINUS, has_repeats, loads, loads_table

    named = loads(runs)
    header, rows = loads_table(named)
    # Failures are printed below, with causes.
    shown = [place for place, title in enumerate(header) if title != "failed"]
    # Titles may use two lines to fit all columns on a terminal.
    titles = [header[place].replace(" ", "\n") for place in shown]
    texts = [number for number, title in enumerate(titles) if title in ("load", "")]
    cells = ([row[place].replace(" ± ", "±") for place in shown] for row in rows)
    print_line(console, "")
    console.print(figures_table(titles, cells, texts))
    if has_repeats(named):
        print_line(console, PLUS_MINUS)
    remarks = [line for load, own in named for line in _remarks(load, own)]
    for line in remarks[:MAX_REMARKS]:
        print_line(console, line)
    if len(remarks) > MAX_REMARKS:
        print_line(console, f"and {len(remarks) - MAX_REMARKS} more")


def _remarks(load: str, own: Sequence[MeasuredRun]) -> Iterator[str]:
    for text, count in Counter(text for one in own for text in _faults(one)).items():
        yield f"{load}: {text}" + (f" ({count} runs)" if count > 1 else "")
    for text in _failures(own):
        yield f"{load}: {text}"


def show_run(measured: MeasuredRun, console: Console) -> None:
    from forebay.bench.report.figures_table import HEADER, NARROW, figure_rows, load_name

    figures, verdict = measured.figures, measured.verdict
    print_line(console, "")
    print_line(console, load_name(measured.run.asked), style="bold")
    if verdict is None:
        print_line(console, "not judged")
    else:
        print_line(console, verdict.word, style="green" if verdict.valid else "red")
        for text in verdict.notes:
            print_line(console, f"  {text}")
    for text in (*_faults(measured), *_failures([measured])):
        print_line(console, f"  {text}")
    failed = f", {figures.failed} failed" if figures.failed else ""
    answered = f"{figures.answered} of {figures.offered} requests answered{failed}"
    print_line(console, f"{answered}, {figures.duration_s:.1f} s")
    rates = [f"{figures.requests_per_s:.2f} requests/s"]
    if figures.output_tokens_per_s is not None:
        rates.append(f"{figures.output_tokens_per_s:.1f} output tokens/s")
    if figures.total_tokens_per_s is not None:
        rates.append(f"{figures.total_tokens_per_s:.1f} tokens/s with prompts")
    if figures.goodput is not None and figures.good_requests_per_s is not None:
        rates.append(f"goodput {figures.goodput:.1%}, {figures.good_requests_per_s:.2f} requests/s")
    print_line(console, "; ".join(rates))
    if rows := [[row[place] for place in NARROW] for row in figure_rows(figures)]:
        console.print(figures_table([HEADER[place] for place in NARROW], rows))


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
