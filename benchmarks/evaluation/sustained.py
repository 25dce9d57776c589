"""The highest sustained rate of a pipeline, and the search for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import Page, Records, Rendered, origin, table

RECORD = "sustained.json"


def render(records: Records) -> Rendered:
    document = records[RECORD]
    rate = document["sustained_per_s"]
    within_s = document["runs"][0]["slo"]["within_s"]
    confirming = [run for run in document["runs"] if run["asked"]["schedule"]["rate_per_s"] == rate]
    found = f"{rate:.1f} events/s are sustained, {document['share']:.0%} committed within {within_s:g} s"
    return Rendered(
        tables={
            "trials": table(
                ("events/s", "sustained", "why not"),
                [
                    (
                        f"{trial['rate_per_s']:.2f}",
                        "yes" if trial["sustained"] else "no",
                        trial["why"] or None,
                    )
                    for trial in document["trials"]
                ],
            ),
            "confirmed": table(
                (
                    "verdict",
                    "events",
                    "goodput",
                    "answered p50, s",
                    "committed p50, s",
                    "committed, longest, s",
                ),
                [_row(run) for run in confirming],
            ),
            "origin": origin({RECORD: document["runs"][0]}),
        },
        finding=f"{found}; {document['not_sustained_per_s']:.1f} are not.",
    )


def _row(run: Mapping[str, Any]) -> tuple[object, ...]:
    figures = run["figures"]
    answered, committed = (figures["latency"][name] for name in ("answered", "committed"))
    return (
        run["verdict"]["word"],
        figures["offered"],
        f"{figures['goodput']:.1%}",
        f"{answered['percentiles']['50']:.2f}",
        f"{committed['percentiles']['50']:.2f}",
        f"{committed['maximum']:.2f}",
    )


PAGE = Page("goodput", "What rate does a pipeline sustain?", (RECORD,), render)
