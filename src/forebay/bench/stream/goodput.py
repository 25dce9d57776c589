"""Goodput without and with kills, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forebay.bench.statistics import mean_interval
from forebay.bench.stream.document import MeasuredStream
from forebay.bench.stream.kills import next_result_s


def goodput_document(found: Sequence[MeasuredStream]) -> dict[str, Any]:
    """For runs without and with kills: goodput with mean and interval if there are several, lost and doubled
    events, and the seconds of recovery from each kill (see `next_result_s`), in the order of the runs."""
    return {
        "without_kills": _of([measured for measured in found if not measured.run.planned_kills]),
        "with_kills": _of([measured for measured in found if measured.run.planned_kills]),
    }


def _of(found: Sequence[MeasuredStream]) -> dict[str, Any] | None:
    if not found:
        return None
    shares = [each.figures.goodput for each in found if each.figures.goodput is not None]
    interval = mean_interval(shares)
    return {
        "goodput": shares,
        "interval": None if interval is None else asdict(interval),
        "good_per_s": [each.figures.good_per_s for each in found],
        "lost": sum(each.figures.lost for each in found),
        "doubled": sum(each.figures.doubled for each in found),
        "failed": sum(each.figures.failed for each in found),
        "kills": [
            {**asdict(killed), "next_result_s": next_result_s(killed, each.run.followed)}
            for each in found
            for killed in each.run.kills
        ],
    }
