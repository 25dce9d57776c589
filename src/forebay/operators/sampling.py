"""Bundles of a Python worker without Beam's state sampler.

Beam measures in which step of a bundle a worker spends its time, on a thread that every bundle starts and
then waits for, two milliseconds or longer. Flink reads none of it. With bundles of a few milliseconds, as
continuous inference needs them, that wait is a large share of the time that process mode adds to an event.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def stop_state_sampling() -> None:
    """In a Python worker process, let bundles that begin from now on start no sampling thread.

    Changes a class of Beam in this process; where it is not the class that is known, does nothing.
    """
    try:
        statesampler: Any = import_module("apache_beam.runners.worker.statesampler")
    except ImportError:
        return
    sampler = statesampler.StateSampler
    if getattr(sampler, "samples_nothing", False) or not {"start", "stop"} <= vars(sampler).keys():
        return
    stop_sampling = sampler.stop

    def start(self: Any) -> None:
        self.samples_nothing = self.started = True
        statesampler.set_current_tracker(self)

    def stop(self: Any) -> None:
        if not vars(self).get("samples_nothing"):
            # A bundle that began with its thread ends with it.
            stop_sampling(self)
            return
        statesampler.set_current_tracker(None)
        self.finished = True

    sampler.start, sampler.stop, sampler.samples_nothing = start, stop, True
