"""Replicas that a cluster's autoscaler starts and stops, by a published number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from forebay.fleet.autoscale.loop import ReplicaCounts

PATIENCE = 3.0
"""Times the known boot: a replica that takes longer is not being started, as under a quota."""
MIN_BOOT_S = 60.0
"""Minimum boot to wait for, as the autoscaler polls the published number."""
LEARNED = 0.5
"""Weight of a boot against the earlier ones."""


@dataclass(frozen=True, slots=True)
class BootMemory:
    boot_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


_MEMORY: TypeAdapter[BootMemory] = TypeAdapter(BootMemory)


class PublishedReplicas:
    """A `ReplicaOwner` that passes the wanted number to `publish` and sees only how many replicas are
    `ready`.

    Wanted replicas that are not ready count as starting since the decision that requested them. One that
    takes several times the known boot (initially `boot_s`) does not count until it is ready: the platform may
    have no room for it. Its boot then counts with that limit, as its real start is unknown. Boot times
    survive a restart like a policy's memory, which such a boot would otherwise distort. There may be more
    replicas than were requested here: those for a gateway that shares them are added. `ready`: how many
    replicas the router may send to.
    """

    def __init__(self, ready: Callable[[], int], publish: Callable[[int], None], boot_s: float) -> None:
        self._ready = ready
        self._publish = publish
        self._boot_s = boot_s
        self._asked_s: list[float] = []
        self._was_ready: int | None = None
        self._asked: int | None = None

    def remembers(self) -> Mapping[str, object]:
        return asdict(BootMemory(self._boot_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        """Raises `ValueError` for an unusable memory, and is then unchanged."""
        self._boot_s = _MEMORY.validate_python(memory).boot_s

    def counts(self, now_s: float) -> ReplicaCounts:
        ready = self._ready()
        came = 0 if self._was_ready is None else max(ready - self._was_ready, 0)
        self._was_ready = ready
        patience_s = PATIENCE * max(self._boot_s, MIN_BOOT_S)
        late = [at_s for at_s in self._asked_s if now_s - at_s > patience_s]
        awaited = self._asked_s[len(late) :]
        booted_s = tuple(min(now_s - at_s, patience_s) for at_s in (awaited + late)[:came])
        awaited, late = awaited[came:], late[max(came - len(awaited), 0) :]
        self._asked_s = late + awaited
        for took_s in booted_s:
            self._boot_s += LEARNED * (took_s - self._boot_s)
        starting = tuple(now_s - at_s for at_s in awaited)
        return ReplicaCounts(ready, starting, booted_s=booted_s, asked=self._asked)

    def scale(self, wanted: int, now_s: float) -> None:
        missing = max(wanted - (self._was_ready or 0), 0)
        del self._asked_s[missing:]
        self._asked_s += [now_s] * (missing - len(self._asked_s))
        self._asked = wanted
        self._publish(wanted)
