"""One Ray cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.ray_fleet.cluster import RayCluster, find_ray


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A running cluster; skips without Ray."""
    ray = find_ray()
    if ray is None:
        pytest.skip("Ray is missing: make ray")
    with RayCluster(ray) as cluster:
        yield cluster
