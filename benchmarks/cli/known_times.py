"""`python -m benchmarks known-times`: checks figures against answers with known times."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.errors import SettingError

if TYPE_CHECKING:
    from benchmarks.known_times import CaseFound


def known_times(
    *,
    case: Annotated[
        list[str] | None, typer.Option(help="A case to measure; repeatable. Default: all.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each case.")] = 40,
    json: JsonFile = None,
) -> None:
    """Compare what `forebay bench` measures with what a server did. Exit status 1 if a figure is wrong."""
    from benchmarks.known_times import CASES, measure_cases

    check_json(json)
    unknown = sorted(set(case or ()) - CASES.keys())
    if unknown:
        raise SettingError(f"--case: expected some of {', '.join(CASES)}; found {', '.join(unknown)}")
    console = errors_console()
    found = measure_cases(case or list(CASES), requests, lambda words: say(console, words))
    write_json(json, {"cases": [_document(each) for each in found]})
    if shows_text(json):
        _show(found)
    if not all(each.right for each in found):
        raise typer.Exit(1)


def _document(found: CaseFound) -> dict[str, Any]:
    measures = [{**asdict(each), "right": each.right} for each in found.measures]
    return {**asdict(found), "measures": measures, "right": found.right}


def _show(found: list[CaseFound]) -> None:
    table = Table("case", "figure", "mean", "truth", "median", "truth", "largest error ms", "right", box=None)
    for each in found:
        for figure in each.measures:
            table.add_row(
                each.name,
                figure.name,
                f"{figure.mean:.4f}",
                f"{figure.true_mean:.4f}",
                f"{figure.median:.4f}",
                f"{figure.true_median:.4f}",
                f"{figure.worst_error * 1000:.2f}",
                "yes" if figure.right else "no",
            )
    console = results_console()
    console.print(table)
    for each in found:
        for words in (*each.wrong, *(f"missing: {words}" for words in each.missing), *each.surplus):
            say(console, f"{each.name}: {words}")
