"""The evaluation: makes the tables and plots of docs/results from the recorded JSON files there."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evaluation import (
    autoscale,
    batching,
    disaggregation,
    goodput,
    grid,
    interplay,
    kubernetes,
    peers,
    ray_fleet,
    scaling,
    sustained,
)
from benchmarks.evaluation.page import Page

PAGES: Sequence[Page] = (
    batching.PAGE,
    grid.PAGE,
    interplay.PAGE,
    sustained.PAGE,
    goodput.PAGE,
    autoscale.PAGE,
    scaling.PAGE,
    kubernetes.PAGE,
    ray_fleet.PAGE,
    disaggregation.PAGE,
    peers.PAGE,
)
"""In the order of the front page."""
