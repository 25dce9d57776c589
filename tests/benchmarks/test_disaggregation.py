"""Every split of a small fleet is tried, and the planned one compared with the best."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.disaggregation import measure, most_rate

from forebay.planning.simulate import Slo
from forebay.planning.simulate.disaggregation import Transfer, at_rate
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals


def test_the_planned_split_is_beside_the_best() -> None:
    # Few sequences at once, so that a short workload fills the decode pool, too.
    engine = replace(LLAMA_8B, max_num_seqs=4)
    loads = {
        "conversation": at_rate(PoissonArrivals(100, 1.0, 200, 100).make()),
        "code": at_rate(PoissonArrivals(100, 1.0, 3000, 4).make()),
    }
    found = measure(loads, engine, 3, Slo(1.0, 1.0, 0.05), Transfer())
    conversation, code = found["workloads"]["conversation"], found["workloads"]["code"]
    assert (conversation["planned_prefill"], conversation["best_prefill"]) == (1, 1)
    assert (code["planned_prefill"], code["best_prefill"]) == (2, 2)
    assert set(conversation["rates_per_s"]) == {"1", "2"}
    assert conversation["best_per_s"] == max(conversation["rates_per_s"].values())
    assert found["passed"]


@pytest.mark.parametrize("start", [0.01, 3.0, 900.0])
def test_the_highest_rate_is_found_from_wherever_the_search_begins(start: float) -> None:
    assert most_rate(lambda rate: 1.0 if rate <= 7.0 else 0.5, start, 0.9) == pytest.approx(7.0, rel=0.01)
