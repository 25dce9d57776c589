"""Bundles without Beam's sampling thread, in a process of their own: the change is for its whole life."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory
from forebay.operators.sampling import stop_state_sampling

def sampler():
    return statesampler.StateSampler("test", CounterFactory())

def threads_of(bundle):
    before = threading.active_count()
    bundle.start()
    more = threading.active_count() - before
    bundle.stop_if_still_running()
    bundle.reset()
    return more

begun = sampler()
begun.start()
stop_state_sampling()
stop_state_sampling()
begun.stop()
begun.reset()
assert threading.active_count() == 1, "a bundle that began with its thread ends with it"
assert threads_of(begun) == 0
fresh = sampler()
for _ in range(3):
    assert threads_of(fresh) == 0
    assert statesampler.get_current_tracker() is None
print("quiet")
"""


def test_bundles_start_no_thread_and_still_begin_and_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "quiet\n", done.stderr
