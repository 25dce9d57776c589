"""The page about goodput: events in time, and the sustained rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import ADVICE, Page, Records, Rendered, origin, table
from benchmarks.evaluation.page import origin as origin_of

RECORD = "goodput.json"
SIDES = {"without_kills": "no kills", "with_kills": "with the kills"}


def render(records: Records) -> Rendered:
    document = records[RECORD]
    first = document["runs"][0]
    within_s = first["slo"]["within_s"]
    sides = {name: document[name] for name in SIDES if document[name]["goodput"]}
    lost = sum(side["lost"] for side in sides.values())
    doubled = sum(side["doubled"] for side in sides.values())
    found = ", ".join(f"{_share(side)} {SIDES[name]}" for name, side in sides.items())
    return Rendered(
        tables={
            "goodput": table(
                (
                    "",
                    f"committed within {within_s:g} s",
                    "of these per second",
                    "lost",
                    "doubled",
                    "given up",
                ),
                [
                    (
                        SIDES[name],
                        _share(side),
                        ", ".join(f"{value:.2f}" for value in side["good_per_s"]),
                        side["lost"],
                        side["doubled"],
                        side["failed"],
                    )
                    for name, side in sides.items()
                ],
            ),
            "kills": table(
                ("killed", "after", "next result"),
                [
                    (kill["part"], f"{kill['at_s']:.0f} s", _after(kill["next_result_s"]))
                    for kill in document["with_kills"]["kills"]
                ],
            ),
            "invalid": "".join(
                f"- {_named(run)}: {reason.partition(ADVICE)[0]}\n"
                for run in document["runs"]
                for reason in run["verdict"]["reasons"]
            )
            or "Nothing is INVALID.\n",
            "origin": origin_of({RECORD: first}),
        },
        finding=f"Of {first['figures']['offered']} events, in time: {found}. {lost} lost, {doubled} doubled.",
    )


def _named(run: Mapping[str, Any]) -> str:
    return SIDES["with_kills" if run["planned_kills"] else "without_kills"]


def _share(side: Mapping[str, Any]) -> str:
    return ", ".join(f"{value:.1%}" for value in side["goodput"])


def _after(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.1f} s later"


PAGE = Page("goodput", "How many events are in time, also while parts are killed?", (RECORD,), render)


SUSTAINED = "sustained.json"


def render_sustained(records: Records) -> Rendered:
    document = records[SUSTAINED]
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
            "origin": origin({SUSTAINED: document["runs"][0]}),
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


SUSTAINED_PAGE = Page("goodput", "What rate does a pipeline sustain?", (SUSTAINED,), render_sustained)
