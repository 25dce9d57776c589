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
    switch = found["switch"]
    halves = [
        (
            name,
            f"{one['rate_per_s']:.1f}",
            f"{one['goodput']:.1%}",
            f"{one['best_fixed_prefill']} : {replicas - one['best_fixed_prefill']}",
            f"{one['best_fixed_goodput']:.1%}",
        )
        for name, one in switch["halves"].items()
    ]
    follows = ("workload", "requests/s", "goodput", "best fixed split", "its goodput")
    changes = ", ".join(f"{prefill} : {replicas - prefill} at {at:.0f} s" for at, prefill in switch["splits"])
    least = min(one["goodput"] / one["best_fixed_goodput"] for one in switch["halves"].values())
    return Rendered(
        tables={
            "splits": table(header, rows),
            "switch": table(follows, halves),
            "changes": f"{changes}\n",
            "origin": origin(records),
        },
        plots={"disaggregation.svg": splits_picture(found)},
        finding=f"The planned number of prefill replicas of {replicas} is at most {most} off the best one of "
        f"{len(workloads)} workloads. The best split takes more than the undivided fleet for "
        f"{len(pays)} of them: {', '.join(pays)}. If the requests change, a split that follows keeps at "
        f"least {least:.1%} of the best fixed one's goodput.",
    )


PAGE = Page("routing", "When does it pay to prefill and decode apart?", (RECORD,), render)
