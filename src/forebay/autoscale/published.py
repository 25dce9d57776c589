"""Replicas that an autoscaler of a cluster starts and stops, by the number that is published."""

from __future__ import annotations

from collections.abc import Callable

from forebay.autoscale.loop import ReplicaCounts


class PublishedReplicas:
    """A `ReplicaOwner` that tells `publish` the wanted number and sees only how many replicas are `ready`.

    Those that are wanted and not there count as starting, each from the decision that asked for it: whoever
    scales acts on what is published. `ready` is what the router may send to.
    """

    def __init__(self, ready: Callable[[], int], publish: Callable[[int], None]) -> None:
        self._ready = ready
        self._publish = publish
        self._starting_s: list[float] = []
        self._was_ready: int | None = None

    def counts(self, now_s: float) -> ReplicaCounts:
        ready = self._ready()
        came = 0 if self._was_ready is None else max(ready - self._was_ready, 0)
        self._was_ready = ready
        booted, self._starting_s = self._starting_s[:came], self._starting_s[came:]
        return ReplicaCounts(
            ready=ready,
            starting=tuple(now_s - at_s for at_s in self._starting_s),
            booted_s=tuple(now_s - at_s for at_s in booted),
        )

    def scale(self, wanted: int, now_s: float) -> None:
        missing = max(wanted - (self._was_ready or 0), 0)
        del self._starting_s[missing:]
        self._starting_s += [now_s] * (missing - len(self._starting_s))
        self._publish(wanted)
