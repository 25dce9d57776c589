"""Log a scaling loop: each change with its reason, and failures."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from forebay.fleet.autoscale.loop import ScalingStep

CHANGES_S = 10.0
FAILURES_S = 60.0


@dataclass(slots=True)
class StepLog:
    """An `on_step` that writes to `log`: a changed wanted number at INFO; a policy that fails, or replicas
    that cannot be scaled, at WARNING.

    Changes at most every 10 seconds, failures every minute; of a number that changes meanwhile, the latest
    one.
    """

    log: logging.Logger
    _logged: int | None = field(default=None, init=False)
    _logged_s: float = field(default=-math.inf, init=False)
    _warned_s: float = field(default=-math.inf, init=False)

    def __call__(self, step: ScalingStep) -> None:
        now_s, decision, signals = step.signals.now_s, step.decision, step.signals
        problem = step.failure or (decision.reason if decision.failed else "")
        if problem:
            if now_s - self._warned_s >= FAILURES_S:
                self._warned_s = now_s
                self.log.warning("replicas could not be scaled as decided: %s", problem)
        elif decision.wanted != self._logged and now_s - self._logged_s >= CHANGES_S:
            before = "" if self._logged is None else f" in place of {self._logged}"
            self._logged, self._logged_s = decision.wanted, now_s
            self.log.info(
                "%d replicas are wanted%s, %d are ready, %d start: %s",
                decision.wanted,
                before,
                signals.ready,
                len(signals.starting),
                decision.reason,
            )
