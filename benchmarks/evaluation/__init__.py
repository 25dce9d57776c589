"""The evaluation: makes the tables and plots of docs/results from the recorded JSON files there."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evaluation import autoscale, batching, goodput, grid, peers, routing, soak
from benchmarks.evaluation.page import Page

PAGES: Sequence[Page] = (
    batching.PAGE,
    grid.PAGE,
    goodput.SUSTAINED_PAGE,
    goodput.PAGE,
    autoscale.PAGE,
    autoscale.KUBERNETES_PAGE,
    routing.PAGE,
    peers.PAGE,
    soak.PAGE,
)
"""In the order of the front page."""
