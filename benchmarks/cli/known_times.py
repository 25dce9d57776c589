"""`python -m benchmarks known-times`: checks figures against answers with known times."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json, results_console, say
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
    found = measure_cases(case or list(CASES), requests, note)
    document = {"cases": [_document(each) for each in found]}
    report(json, document, lambda: _show(found), passed=all(each.right for each in found))


def _document(found: CaseFound) -> dict[str, Any]:
    measures = [{**asdict(each), "right": each.right} for each in found.measures]
    return {**asdict(found), "measures": measures, "right": found.right}


def _show(found: list[CaseFound]) -> None:
    show_table(
        ("case", "figure", "mean", "truth", "median", "truth", "largest error ms", "right"),
        (
            (
                each.name,
                of.name,
                *(f"{value:.4f}" for value in (of.mean, of.true_mean, of.median, of.true_median)),
                f"{of.worst_error * 1000:.2f}",
                "yes" if of.right else "no",
            )
            for each in found
            for of in each.measures
        ),
    )
    for each in found:
        for words in (*each.wrong, *(f"missing: {words}" for words in each.missing), *each.surplus):
            say(results_console(), f"{each.name}: {words}")
