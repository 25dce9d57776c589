"""Records what the API server, the pipeline and the replicas report of a run, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from forebay.deploy.controller.scrape import values
from forebay.deploy.kubernetes.deployment import BACKLOG_TOKENS, IN_FLIGHT, PENDING, REPLICAS, WANTED
from forebay.flink.metric_names import PREFIX

ACCEPTED = f"{PREFIX}accepted_total"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
DONE = "vllm:request_success_total"
KNOWN_AFTER_S = 0.5
"""A router that still sends to a replica this long after its SIGTERM does not know about it, or
ignores it."""


@dataclass(slots=True)
class ReplicaSeen:
    """One pod of the engine. `asked_s`: its first request ran. `at_stop`: requests in it at its
    SIGTERM. `taken`: total requests accepted by a time, in order."""

    name: str
    address: str = ""
    ready_s: float | None = None
    asked_s: float | None = None
    stopping_s: float | None = None
    gone_s: float | None = None
    running: float = 0.0
    at_stop: float = 0.0
    taken: list[tuple[float, float]] = field(default_factory=list)

    def pod(self, body: Mapping[str, Any], now_s: float) -> None:
        status = body.get("status") or {}
        self.address = str(status.get("podIP") or "")
        ready = any(
            one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()
        )
        if ready and self.ready_s is None:
            self.ready_s = now_s
        if body["metadata"].get("deletionTimestamp") and self.stopping_s is None:
            self.stopping_s, self.at_stop = now_s, self.running

    def metrics(self, text: str, now_s: float) -> None:
        self.running = sum((*values(text, RUNNING), *values(text, WAITING)))
        if self.running and self.asked_s is None:
            self.asked_s = now_s
        self.taken.append((now_s, self.running + sum(values(text, DONE))))

    @property
    def sent_late(self) -> float:
        """Requests accepted after every sender could know that it stops."""
        if self.stopping_s is None:
            return 0.0
        after = [count for at_s, count in self.taken if at_s >= self.stopping_s + KNOWN_AFTER_S]
        return after[-1] - after[0] if after else 0.0

    def document(self) -> dict[str, Any]:
        moments = {
            name: None if value is None else round(value, 2)
            for name, value in {
                "ready_s": self.ready_s,
                "asked_s": self.asked_s,
                "stopping_s": self.stopping_s,
                "gone_s": self.gone_s,
            }.items()
        }
        return {"name": self.name, **moments, "at_stop": self.at_stop, "sent_late": self.sent_late}


@dataclass(slots=True)
class Changes:
    found: list[tuple[float, int]] = field(default_factory=list)

    def see(self, value: int, now_s: float) -> None:
        if not self.found or self.found[-1][1] != value:
            self.found.append((now_s, value))

    @property
    def last(self) -> int:
        return self.found[-1][1] if self.found else 0


@dataclass(slots=True)
class Seen:
    replicas: dict[str, ReplicaSeen] = field(default_factory=dict)
    wanted: Changes = field(default_factory=Changes)
    routed: Changes = field(default_factory=Changes)
    scale: Changes = field(default_factory=Changes)
    course: list[dict[str, Any]] = field(default_factory=list)
    _pipeline: str = ""
    _accepted: float = 0.0

    def deployment(self, body: Mapping[str, Any], now_s: float) -> None:
        self.scale.see(int(body["spec"]["replicas"]), now_s)

    def pods(self, bodies: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        for name, body in bodies.items():
            self.replicas.setdefault(name, ReplicaSeen(name)).pod(body, now_s)
        for name, replica in self.replicas.items():
            if name not in bodies and replica.gone_s is None:
                replica.gone_s = now_s

    def pipeline(self, text: str, now_s: float) -> None:
        self._pipeline = text
        found = values(text, WANTED)
        if found:
            self.wanted.see(math.ceil(max(found)), now_s)
        for known in values(text, REPLICAS):
            self.routed.see(int(known), now_s)

    @property
    def job_runs(self) -> bool:
        """Whether the operator's metrics are available."""
        return bool(values(self._pipeline, ACCEPTED))

    def here(self) -> list[ReplicaSeen]:
        return [each for each in self.replicas.values() if each.gone_s is None]

    def line(self, now_s: float) -> dict[str, Any]:
        """The present moment as a line of the course; appends it."""
        here = self.here()
        stopping = [each for each in here if each.stopping_s is not None]
        ready = [each for each in here if each.ready_s is not None and each.stopping_s is None]
        at_replicas = sum(each.running for each in here)
        held = sum(values(self._pipeline, IN_FLIGHT)) + sum(values(self._pipeline, PENDING))
        accepted = sum(values(self._pipeline, ACCEPTED))
        line = {
            "at_ms": round(now_s * 1000),
            "waiting": round(max(0.0, held - at_replicas)),
            "backlog_tokens": round(sum(values(self._pipeline, BACKLOG_TOKENS))),
            "running": round(at_replicas),
            "arrived": round(max(0.0, accepted - self._accepted)),
            "wanted": self.wanted.last,
            "scale": self.scale.last,
            "ready": len(ready),
            "starting": len(here) - len(ready) - len(stopping),
            "draining": len(stopping),
        }
        self._accepted = max(accepted, self._accepted)
        self.course.append(line)
        return line

    def scaled_up_s(self) -> list[float]:
        """Seconds from each rise of the pipeline's metric until the Deployment's scale followed."""
        found = []
        before_s = 0.0
        ends_s = [*(at_s for at_s, _ in self.scale.found[2:]), math.inf]
        for (_, old), (at_s, new), end_s in zip(self.scale.found, self.scale.found[1:], ends_s, strict=False):
            asked = [when for when, wanted in self.wanted.found if wanted >= new and before_s <= when < end_s]
            if new > old and asked:
                found.append(round(max(at_s - asked[0], 0.0), 2))
            before_s = at_s
        return found

    def known_s(self) -> list[float]:
        """For each replica that became ready while there were others: seconds until the router counted one
        more."""
        found = []
        for each in self.replicas.values():
            before = [count for at_s, count in self.routed.found if at_s <= (each.ready_s or 0.0)]
            if each.ready_s is None or not before:
                continue
            more = [at_s for at_s, count in self.routed.found if at_s > each.ready_s and count > before[-1]]
            if more:
                found.append(round(more[0] - each.ready_s, 2))
        return found

    def routed_s(self) -> list[float]:
        """For each replica that became ready while events waited: seconds until its first request ran."""
        began = self.wanted.found[0][0] if self.wanted.found else 0.0
        return [
            round(each.asked_s - each.ready_s, 2)
            for each in self.replicas.values()
            if each.ready_s is not None and each.asked_s is not None and each.ready_s > began
        ]


def levels(course: Sequence[Mapping[str, Any]]) -> list[int]:
    found: list[int] = []
    for line in course:
        if not found or found[-1] != line["ready"]:
            found.append(line["ready"])
    return found


def summary(seconds: Sequence[float]) -> dict[str, float | None]:
    return {
        "median_s": round(median(seconds), 2) if seconds else None,
        "most_s": round(max(seconds), 2) if seconds else None,
    }
