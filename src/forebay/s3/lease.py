"""Who may write to a place in an object store: one lease, renewed by its holder, taken by another once the
holder is silent. Pure: what was read and when goes in, what to do comes out.

The lock is one object. Its holder writes it anew every `BEAT_S`, each time on condition that it is still the
one written before; so does whoever takes it. Of two who write at a time one fails, and knows by that.

Only silence while the server answers counts: in an outage nobody loses a lease.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

BEAT_S = 1.0
"""How often the holder renews."""
LEASE_S = 3.0
"""How long one who wants the lease watches a holder that is silent before it takes it for dead. Longer than
`RENEWED_AGAIN_S` after a beat: a holder of which one renewal was not answered, or that was cut off from the
server with all others, renews within this time. How long it was silent before does not count: it may have
been cut off."""
BEAT_TIMEOUT_S = 1.5
RETRY_S = 0.25
RENEWED_AGAIN_S = BEAT_TIMEOUT_S + RETRY_S
"""A renewal that the server does not answer is given up after the first, and made anew after the second."""
GAP_S = 2.0
"""What lies further apart than this is no watching: the server may have been away, or who watches."""
MAX_LOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lock:
    """What the lock's object holds: the `pipeline` whose state this is, for whom it is held (`holder`, drawn
    for each run; `where`: the machine and process, for people), a count of renewals, and whether it was let
    go in order."""

    pipeline: str
    where: str = ""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    beat: int = 0
    released: bool = False

    def renewed(self, *, released: bool = False) -> Lock:
        """The next one to write."""
        return replace(self, beat=self.beat + 1, released=released)


def encode_lock(lock: Lock) -> bytes:
    """The object's content."""
    return json.dumps(asdict(lock)).encode()


def decode_lock(content: bytes) -> Lock:
    """What `encode_lock` was given. Raises `ValueError` for anything else."""
    try:
        found = json.loads(content)
        lock = Lock(**{name: found[name] for name in ("pipeline", "where", "holder", "beat", "released")})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no lock ({type(error).__name__})") from None
    kinds = {"pipeline": str, "where": str, "holder": str, "beat": int, "released": bool}
    for name, kind in kinds.items():
        if type(getattr(lock, name)) is not kind:
            raise ValueError(f"it is no lock ({name})")
    return lock


@dataclass(frozen=True, slots=True)
class Seen:
    """The lock as it was read: its `etag`, and whether it was `released`."""

    etag: str
    released: bool


class Claim:
    """One who wants the lease, and looks at the lock every now and then."""

    def __init__(self) -> None:
        self._etag: str | None = None
        self._since_s: float | None = None
        self._looked_s = 0.0

    def look(self, seen: Seen | None, now_s: float) -> Literal["take", "wait", "refuse"]:
        """What to do, now that the lock was `seen` (None: there is none): take it on condition that it is
        still the same; look again soon; or give up, for its holder lives."""
        if seen is None or seen.released:
            return "take"
        watched = now_s - self._looked_s <= GAP_S
        renewed = self._etag is not None and seen.etag != self._etag
        if renewed and watched:
            return "refuse"
        # A renewal at an unknown moment of a gap does not say that its writer still lives.
        if self._since_s is None or renewed or not watched:
            self._since_s = now_s
        self._etag, self._looked_s = seen.etag, now_s
        return "take" if now_s - self._since_s >= LEASE_S else "wait"

    def unanswered(self) -> None:
        """The server did not answer: nobody could renew meanwhile, so the silence is counted anew."""
        self._since_s = None
