"""Share of events in time, also while parts of the pipeline are killed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.page import MEND, Page, Records, Rendered, table
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
                f"- {_named(run)}: {reason.partition(MEND)[0]}\n"
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
