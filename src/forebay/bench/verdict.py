"""The verdict on a run's figures: VALID, or INVALID with every reason found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.bench.answer_checks import ANSWER_CHECKS
from forebay.bench.load_checks import LOAD_CHECKS
from forebay.bench.records import LoadRun
from forebay.bench.statistics import can_tell, percentile


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons`: why the run is invalid; empty: it is valid. `notes`: further findings, such as the schedule
    delay. `schedule_delay_p99_s`: None with fewer than 1,000 requests; `schedule_delay_max_s`: None if none
    was sent."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    schedule_delay_p99_s: float | None
    schedule_delay_max_s: float | None

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def word(self) -> str:
        return "VALID" if self.valid else "INVALID"


def judge(run: LoadRun) -> Verdict:
    """Judge a run from its records and samples alone."""
    delays_s = sorted(record.sent_s - record.due_s for record in run.records if record.sent_s is not None)
    p99_s = percentile(delays_s, 99) if can_tell(len(delays_s), 99) else None
    found = [check(run) for check in (*ANSWER_CHECKS, *LOAD_CHECKS)]
    return Verdict(
        reasons=tuple(reason for reason in found if reason is not None),
        notes=tuple(_notes(delays_s, p99_s)),
        schedule_delay_p99_s=p99_s,
        schedule_delay_max_s=delays_s[-1] if delays_s else None,
    )


def _notes(delays_s: Sequence[float], p99_s: float | None) -> list[str]:
    if not delays_s:
        return []
    most = f"at most {delays_s[-1] * 1000:.3g} ms"
    if p99_s is None:
        return [f"schedule delay: {most}; a p99 needs 1,000 requests, and {len(delays_s)} were sent"]
    return [f"schedule delay: p99 {p99_s * 1000:.3g} ms, {most}"]
