"""River's clusterers against ours, on as many texts as they process."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.river_baselines import is_installed, river_baselines

if not is_installed():
    pytest.skip("river is not installed", allow_module_level=True)

TEXTS = ["storm hits lisbon", "late goal in the cup", "markets fall again"] * 20
GOLD = [0, 1, 2] * 20
VECTORS = np.eye(3, dtype=np.float32)[GOLD]


def test_what_is_easy_is_found_and_scored_on_the_texts_that_were_taken() -> None:
    said: list[str] = []
    found = river_baselines(TEXTS, GOLD, VECTORS, GOLD, said.append)
    assert set(found) == {"river_textclust", "river_dbstream"}
    for each in found.values():
        assert each["texts"] == 60
        assert each["nmi"] > 0.7
        assert each["same_texts"]["nmi"] == pytest.approx(1.0)
    assert len(said) == 2


def test_a_clusterer_is_stopped_when_its_time_is_over() -> None:
    found = river_baselines(TEXTS, GOLD, VECTORS, GOLD, lambda line: None, limit_s=0.0)
    assert all(each["texts"] == 0 for each in found.values())
