"""Replicas that an autoscaler of a cluster starts and stops, by the number that is published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from forebay.autoscale.loop import ReplicaCounts

PATIENCE = 3.0
"""Times the known boot: what has not come by then is not being started, as under a quota."""
LEAST_BOOT_S = 60.0
"""A shorter boot is waited for like this one: whoever scales looks at the published number now and then."""
LEARNED = 0.5
"""What a boot counts for beside those before it."""


@dataclass(frozen=True, slots=True)
class BootMemory:
    """What outlives a restart: how long boots took."""

    boot_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


_MEMORY: TypeAdapter[BootMemory] = TypeAdapter(BootMemory)


class PublishedReplicas:
    """A `ReplicaOwner` that tells `publish` the wanted number and sees only how many replicas are `ready`.

    Those that are wanted and not there count as starting, each from the decision that asked for it: whoever
    scales acts on what is published. One that has not come after several times the known boot, at first
    `boot_s`, does not count until it is there: the platform may have no room for it. If it comes after all,
    its boot counts as so long, for nobody knows when it was started. What is known of boots is
    remembered, as it is by a policy: a boot that counts as so long would otherwise lower what that one knows.
    The replicas may be more than were asked for here: a gateway that shares them has its own added.
    `ready` is what the router may send to.
    """

    def __init__(self, ready: Callable[[], int], publish: Callable[[int], None], boot_s: float) -> None:
        self._ready = ready
        self._publish = publish
        self._boot_s = boot_s
        self._asked_s: list[float] = []
        self._was_ready: int | None = None
        self._asked: int | None = None

    def remembers(self) -> Mapping[str, object]:
        """What outlives a restart."""
        return asdict(BootMemory(self._boot_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with what was remembered. Raises `ValueError` where it is not that, and is then as it was."""
        self._boot_s = _MEMORY.validate_python(memory).boot_s

    def counts(self, now_s: float) -> ReplicaCounts:
        ready = self._ready()
        came = 0 if self._was_ready is None else max(ready - self._was_ready, 0)
        self._was_ready = ready
        patience_s = PATIENCE * max(self._boot_s, LEAST_BOOT_S)
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
