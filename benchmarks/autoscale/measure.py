"""Compares the default policy with all others at their best settings, and with an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.autoscale.contenders import FIXED, OTHERS, Point, fixed, run_deadline, sweep
from benchmarks.autoscale.loads import Case
from benchmarks.autoscale.oracle import oracle
from forebay.pages.charts import Line, Note, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import NUMBER

GOAL = 0.99
TOLERANCE = 1.001
"""Costs within a thousandth count as equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load with one boot and one SLO: the default, every setting of the others, and the oracle's cost.

    `work_s` is the load in seconds of a busy replica: no fleet pays less.
    """

    load: str
    daily: bool
    boot_s: float
    slo_s: float
    work_s: float
    deadline: Point
    others: tuple[Point, ...]
    oracle_seconds: float

    def at_equal_cost(self) -> Point | None:
        """The best goodput of another policy, or of a fixed fleet, at the default's cost or less."""
        most = self.deadline.replica_seconds * TOLERANCE
        return max(
            (each for each in self.others if each.replica_seconds <= most),
            key=lambda each: each.goodput,
            default=None,
        )

    def cheapest(self, *, of_fixed: bool) -> Point | None:
        found = (each for each in self.others if (each.policy == FIXED) is of_fixed and each.goodput >= GOAL)
        return min(found, key=lambda each: each.replica_seconds, default=None)

    def best(self, policy: str) -> Point:
        """A policy's cheapest setting that reaches the goal, else its setting with the most goodput."""
        points = [each for each in self.others if each.policy == policy]
        enough = [each for each in points if each.goodput >= GOAL]
        if enough:
            return min(enough, key=lambda each: each.replica_seconds)
        return max(points, key=lambda each: each.goodput)

    def frontier(self, policy: str) -> list[Point]:
        """A policy's settings that no cheaper or equally cheap setting of its own beats in goodput, cheapest
        first."""
        found: list[Point] = []
        points = (each for each in self.others if each.policy == policy)
        for point in sorted(points, key=lambda each: (each.replica_seconds, -each.goodput)):
            if not found or point.goodput > found[-1].goodput:
                found.append(point)
        return found

    def document(self) -> dict[str, Any]:
        """The comparison as JSON: each policy's best setting, and the frontiers in `frontier`."""
        chosen = [self.deadline, *(self.best(name) for name in (FIXED, *OTHERS))]
        equal = self.at_equal_cost()
        costs = {"other": self.cheapest(of_fixed=False), "fixed": self.cheapest(of_fixed=True)}
        paid = self.deadline.replica_seconds
        return {
            "load": self.load,
            "daily": self.daily,
            "boot_s": self.boot_s,
            "slo_s": self.slo_s,
            "work_s": self.work_s,
            "oracle_replica_seconds": self.oracle_seconds,
            "policies": {each.policy: self._entry(each) for each in chosen},
            "best_goodput_at_equal_cost": equal.goodput if equal else None,
            "cost_over_best_other": paid / costs["other"].replica_seconds if costs["other"] else None,
            "cost_over_best_fixed": paid / costs["fixed"].replica_seconds if costs["fixed"] else None,
            "reaches_goal": self.deadline.goodput >= GOAL,
            "frontier": [
                self._entry(each) | {"policy": each.policy}
                for policy in (FIXED, *OTHERS)
                for each in self.frontier(policy)
            ],
        }

    def _entry(self, point: Point) -> dict[str, Any]:
        values = asdict(point)
        del values["policy"]
        return values | {"oracle_ratio": point.replica_seconds / max(self.oracle_seconds, 1e-9)}


def compare_policies(
    case: Case,
    boots_s: Sequence[float],
    slos_s: Sequence[float],
    note: Callable[[str], None] = lambda _: None,
) -> list[Comparison]:
    """Every policy on one load, for each boot and each SLO; takes minutes."""
    found = []
    for slo_s in slos_s:
        note(f"{case.name}, SLO {slo_s:g} s: fixed fleets")
        # Fixed fleets never boot.
        steady = fixed(case, slo_s=slo_s, boot_s=boots_s[0])
        for boot_s in boots_s:
            words = f"{case.name}, SLO {slo_s:g} s, boot {boot_s:g} s"
            points = list(steady)
            for policy in OTHERS:
                note(f"{words}: {policy}")
                points += sweep(policy, case, slo_s=slo_s, boot_s=boot_s)
            note(f"{words}: deadline and the oracle")
            mine = run_deadline(case, slo_s=slo_s, boot_s=boot_s)
            plan = oracle(case.load, slo_s=slo_s, boot_s=boot_s, drain_s=case.model.stay_s, goal=GOAL)
            found.append(
                Comparison(
                    load=case.name,
                    daily=case.daily,
                    boot_s=boot_s,
                    slo_s=slo_s,
                    work_s=float(case.load.work_s.sum()),
                    deadline=mine,
                    others=tuple(points),
                    oracle_seconds=plan.replica_seconds,
                )
            )
    return found


def frontiers_picture(found: Sequence[Comparison]) -> Picture:
    """Each policy's settings as points and the oracle as a line."""
    figures = []
    for one in found:
        points = {
            name: [(p.replica_seconds / one.work_s, p.goodput) for p in one.others if p.policy == name]
            for name in (FIXED, *OTHERS)
        }
        lines = [
            Line(name, own, colour, "dots")
            for (name, own), colour in zip(points.items(), COLOURS, strict=False)
        ]
        mine = one.deadline.replica_seconds / one.work_s
        oracle_cost = one.oracle_seconds / one.work_s
        lines.append(Line("oracle (99 %)", [(oracle_cost, 0.6), (oracle_cost, 1.0)], "soft", "dash"))
        figures.append(
            share_figure(
                f"Goodput: {one.load}, boot {one.boot_s:g} s, SLO {one.slo_s:g} s",
                lines,
                label=f"Goodput by cost of {one.load}",
                x_name="replica-seconds / work",
                x_unit=NUMBER,
                x_high=max(4.0, 1.2 * mine),
                y_low=0.6,
                notes=[Note(mine, one.deadline.goodput, "deadline", ring=True)],
            )
        )
    return Picture("", figures, columns=3)
