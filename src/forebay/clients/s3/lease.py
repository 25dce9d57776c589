"""The lease on a pipeline's state in an object store: one run holds and renews it, and another run takes it
once its holder is silent. Pure: decides from what was read and when.

The lock is one object. Its holder rewrites it every `BEAT_S`, each time on condition that it is unchanged; so
does a run that takes it. If two runs write at the same time, one write fails, and so detects the other run.

A holder may rely on a renewal for `HOLD_S` after it was sent. If the next one is not confirmed by then, its
Flink is suspended (`pipeline/flink_main.py`). A claimer waits for `LEASE_S`, which is longer. So nothing
depends on the reason of the silence: a suspended machine, a cut network, rejected writes or an outage of the
store.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

BEAT_S = 1.0
LEASE_S = 3.0
"""How long a claimer watches a silent holder before it takes the lease. Earlier silence does not count: the
claimer may have been cut off."""
HOLD_S = 2.5
"""How long a holder relies on a renewal, from when it was sent. The rest of `LEASE_S` is for the guard to
suspend Flink on a busy machine."""
BEAT_TIMEOUT_S = 1.5
RETRY_S = 0.25
GAP_S = 2.0
"""Two reads that are further apart do not count as watching: the store or the claimer may have been away."""
MAX_LOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of the lock object. `holder` is a random id of the run, `where` its machine and process for
    people, `beat` counts renewals. `released`: its holder ended cleanly. `unfenced`: an earlier holder did
    not, and it is not certain yet that its job commits nothing."""

    pipeline: str
    where: str = ""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    beat: int = 0
    released: bool = False
    unfenced: bool = False

    def renewed(self, *, released: bool = False, unfenced: bool = False) -> Lock:
        return replace(self, beat=self.beat + 1, released=released, unfenced=unfenced)

    @property
    def leaves_unfenced(self) -> bool:
        """Whether a run that takes the lease now has to fence the last job."""
        return self.unfenced or not self.released


def encode_lock(lock: Lock) -> bytes:
    return json.dumps(asdict(lock)).encode()


KINDS = {
    "pipeline": str,
    "where": str,
    "holder": str,
    "beat": int,
    "released": bool,
    "unfenced": bool,
}


def decode_lock(content: bytes) -> Lock:
    """The inverse of `encode_lock`. Raises `ValueError` for anything else."""
    try:
        found = json.loads(content)
        lock = Lock(**{name: found[name] for name in KINDS})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a lock: {type(error).__name__}") from None
    for name, kind in KINDS.items():
        if type(getattr(lock, name)) is not kind:
            raise ValueError(f"not a lock: {name}")
    return lock


@dataclass(frozen=True, slots=True)
class Seen:
    etag: str
    released: bool


class Claim:
    def __init__(self) -> None:
        self._etag: str | None = None
        self._since_s: float | None = None
        self._looked_s = 0.0

    def look(self, seen: Seen | None, now_s: float) -> Literal["take", "wait", "refuse"]:
        """What to do after the lock was read as `seen` (None: there is none): take it on condition that it is
        unchanged, read it again soon, or give up because its holder is alive."""
        if seen is None or seen.released:
            return "take"
        watched = now_s - self._looked_s <= GAP_S
        renewed = self._etag is not None and seen.etag != self._etag
        if renewed and watched:
            return "refuse"
        # A renewal at an unknown time in a gap does not prove that its writer is still alive.
        if self._since_s is None or renewed or not watched:
            self._since_s = now_s
        self._etag, self._looked_s = seen.etag, now_s
        return "take" if now_s - self._since_s >= LEASE_S else "wait"

    def unanswered(self) -> None:
        """The store did not answer, so perhaps neither does it to the holder: the silence is counted from
        zero."""
        self._since_s = None
