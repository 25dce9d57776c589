"""Separate replicas for prefill and decode, in the simulator: every split of a fleet."""

from __future__ import annotations

from benchmarks.evaluation.page import Page, Records, Rendered, origin, table
from benchmarks.picture import splits_picture

RECORD = "disaggregation.json"


def render(records: Records) -> Rendered:
    found = records[RECORD]
    replicas, workloads = found["replicas"], found["workloads"]
    rows = [
        (
            name,
            *(f"{at} : {replicas - at}" for at in (one["planned_prefill"], one["best_prefill"])),
            *(f"{one[key]:.1f}" for key in ("planned_per_s", "best_per_s", "mixed_per_s")),
        )
        for name, one in workloads.items()
    ]
    header = ("workload", "planned split", "best split", "planned, req/s", "best, req/s", "undivided, req/s")
    most = max(one["off_by"] for one in workloads.values())
    pays = [name for name, one in workloads.items() if one["best_per_s"] > one["mixed_per_s"]]
    return Rendered(
        tables={
            "splits": table(header, rows),
            "origin": origin(records),
        },
        plots={"disaggregation.svg": splits_picture(found)},
        finding=f"The planned number of prefill replicas of {replicas} is at most {most} off the best one of "
        f"{len(workloads)} workloads. The best split takes more than the undivided fleet for "
        f"{len(pays)} of them: {', '.join(pays)}.",
    )


PAGE = Page("routing", "When does it pay to prefill and decode apart?", (RECORD,), render)
