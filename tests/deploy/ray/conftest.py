"""One Ray cluster for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.ray_cluster import RayCluster

from forebay.settings import load_settings


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A running cluster; skips where there is no Ray."""
    where = load_settings().home / "ray"
    own = where / "bin" / "ray"
    found = str(own) if own.exists() else shutil.which("ray")
    if found is None:
        pytest.skip(f"Ray is missing in {where}: make ray")
    with RayCluster(Path(found)) as cluster:
        yield cluster
