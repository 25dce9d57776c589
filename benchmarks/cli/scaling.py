"""`python -m benchmarks scaling`: a burst that scales real replicas from none to two and back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import Plot, check_plot, command_line, report
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say


def scaling(
    *,
    burst: Annotated[int, typer.Option(min=1, max=100_000, help="Events in the burst.")] = 600,
    json: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Let a burst scale local vLLM from no replica to two and back to none.

    Takes minutes. Exit status 1 if an event was lost, doubled or cut off, or the replicas took another
    course.
    """
    from benchmarks.scaling import BurstOptions, measure_scaling
    from forebay.bench.provenance import provenance
    from forebay.cli.live import LiveLine
    from forebay.engine.launch import ConsoleProgress
    from forebay.engine.launch.environment import DEFAULT_MODEL
    from forebay.pages.picture import write_picture
    from forebay.pipeline.scaling.picture import course_picture
    from forebay.settings import load_settings

    check_json(json)
    check_plot(plot)
    console = errors_console()
    with tempfile.TemporaryDirectory(prefix="forebay-scaling-") as folder, LiveLine(console) as line:
        options = BurstOptions(burst=burst)
        found = measure_scaling(
            options, load_settings(), Path(folder), say=line.show, progress=ConsoleProgress(console)
        )
    origin = provenance(command=command_line(), model=DEFAULT_MODEL, seed=1)
    if plot is not None:
        title = f"{found.events} events, local vLLM, policy deadline"
        write_picture(plot, course_picture(found.course, title))
    words = (
        f"{found.answered} of {found.events} events answered, {found.lost} lost, {found.doubled} "
        f"doubled, {found.cut_off} cut off; ready replicas {' → '.join(map(str, found.levels))}; boots "
        f"{', '.join(f'{boot:.0f} s' for boot in found.boots_s)}; first answer after "
        f"{found.first_answer_s:.0f} s, burst done after {found.burst_done_s:.0f} s"
    )
    document = {"provenance": origin, **found.document()}
    report(json, document, lambda: say(results_console(), words), passed=found.passed)
