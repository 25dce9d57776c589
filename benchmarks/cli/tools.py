"""Commands that check what measures: the load client, HTTP calls, known times."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, print_line, results_console

if TYPE_CHECKING:
    from benchmarks.known_times import CaseFound


def client(
    *,
    rate: Annotated[
        list[float] | None, option("Requests per second; may be repeated: 250, 500, 1000.")
    ] = None,
    seconds: Annotated[float, option("Length of each run.", min=1)] = 10.0,
    tokens: Annotated[int, option("Tokens of each answer, one an event.", min=2)] = 20,
    seed: Annotated[int, option("Seed of the arrivals.")] = 0,
    json: JsonFile = None,
) -> None:
    """Measure the load client on one core, with a scripted server on another. Exit status 1 if it misses a
    rate."""
    from benchmarks.client import ClientOptions, measure_client

    common.check_report_files(json)
    given = ClientOptions(seconds=seconds, tokens=tokens, seed=seed)
    options = ClientOptions(tuple(rate or given.rates), seconds, tokens, seed=seed)
    found = measure_client(options, common.note)
    passed = all(run["verdict"] == "VALID" for run in found["runs"])
    common.report(json, found, lambda: _show_client(found["runs"]), passed=passed)


def _show_client(runs: list[dict[str, Any]]) -> None:
    common.show_table(
        ("requests/s", "", "schedule delay p50, p99, max, ms", "added to TTFT p50, p99, ms", "cores"),
        (
            (
                f"{run['rate_per_s']:g}",
                run["verdict"],
                ", ".join(f"{value:.2f}" for value in run["schedule_delay_ms"].values()),
                ", ".join(f"{value:.2f}" for value in list(run["added_ttft_ms"].values())[:2]),
                f"{run['client_cores']:.2f}",
            )
            for run in runs
        ),
    )
    for run in runs:
        for reason in run["reasons"]:
            print_line(results_console(), f"{run['rate_per_s']:g}: {reason}")


def http_calls(
    *,
    rounds: Annotated[int, option("How often each client is measured.", min=1)] = 5,
    seconds: Annotated[float, option("Length of each measurement.", min=0.1)] = 5.0,
    chunks: Annotated[int, option("Pieces of each answer.", min=1)] = 4,
    json: JsonFile = None,
) -> None:
    """Measure the processor time of a streamed call with Forebay's HTTP client and with aiohttp."""
    from benchmarks.client import HttpCallsOptions, measure_http_calls

    common.check_report_files(json)
    found = measure_http_calls(HttpCallsOptions(rounds, seconds, chunks=chunks), common.note)
    common.report(json, found, lambda: _show_http_calls(found))


def _show_http_calls(found: dict[str, Any]) -> None:
    rates = [load["per_s"] for load in found["loads"]]
    names = ["as many as it makes" if rate is None else f"{rate:g} calls/s" for rate in rates]
    common.show_table(
        (
            "milliseconds of processor a call, median",
            *(each for name in names for each in (name, "of aiohttp")),
        ),
        (
            (name, *(f"{ms:.3f}" for load in found["loads"] for ms in _with_share(load["median"], name)))
            for name in found["clients"]
        ),
    )


def _with_share(ms: dict[str, float], name: str) -> tuple[float, float]:
    return ms[name], ms[name] / ms["aiohttp"]


def known_times(
    *,
    case: Annotated[list[str] | None, option("A case to measure; repeatable. Default: all.")] = None,
    requests: Annotated[int, option("Requests of each case.", min=1)] = 40,
    json: JsonFile = None,
) -> None:
    """Compare what `forebay bench` measures with what a server did. Exit status 1 if a figure is wrong."""
    from benchmarks.known_times import CASES, measure_cases

    common.check_report_files(json)
    common.check_known("--case", case, CASES)
    found = measure_cases(case or list(CASES), requests, common.note)
    document = {"cases": [_case_document(each) for each in found]}
    common.report(json, document, lambda: _show_known_times(found), passed=all(each.right for each in found))


def _case_document(found: CaseFound) -> dict[str, Any]:
    measures = [{**asdict(each), "right": each.right} for each in found.measures]
    return {**asdict(found), "measures": measures, "right": found.right}


def _show_known_times(found: list[CaseFound]) -> None:
    common.show_table(
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
            print_line(results_console(), f"{each.name}: {words}")
