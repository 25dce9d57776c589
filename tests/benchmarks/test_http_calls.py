"""`python -m benchmarks http-calls`."""

from __future__ import annotations

import math
import os

import pytest
from benchmarks.client import HttpCallsOptions, installed, measure_http_calls


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_every_client_gets_its_answers() -> None:
    found = measure_http_calls(HttpCallsOptions(rounds=1, seconds=0.2, loads=(50.0, math.inf)))
    for load in found["loads"]:
        assert load["median"].keys() == set(installed())
        assert all(ms > 0 for ms in load["median"].values())
