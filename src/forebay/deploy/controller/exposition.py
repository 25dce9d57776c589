"""Reads the load from Prometheus metrics of pipeline and gateway pods."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.deploy.kubernetes.metrics import IN_FLIGHT, WANTED
from forebay.gateway.peak_load import PEAK_LOAD
from forebay.untrusted_text import counted

MAX_CHARS = 16 << 20
MAX_WANTED = 10_000
MAX_LOAD = 1_000_000
MAX_PROBLEMS = 4
PARTLY_READ = "some metrics are missing, so no replica is removed"
SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t]*$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """The replicas' load.

    `wanted`: replicas that the pipeline needs. `in_flight`: the pipeline's requests at replicas. `gateway`:
    the gateway's requests, at replicas or waiting. `wanted`, `gateway`: None if unknown or absent.
    `pipeline`: whether it reports `wanted`. `problems`: why the load may be higher, or empty.
    """

    wanted: int | None = None
    in_flight: float = 0.0
    gateway: float | None = None
    problems: str = ""
    pipeline: bool = True

    @property
    def requests(self) -> float:
        return self.in_flight + (self.gateway or 0.0)

    def replicas(self, requests_per_replica: int) -> float:
        """Replicas for pipeline and gateway: both use the same ones, so their loads add up."""
        return (self.wanted or 0) + (self.gateway or 0.0) / requests_per_replica

    def __str__(self) -> str:
        said = [f"the pipeline needs {self.wanted}"] if self.pipeline else []
        if self.gateway is not None:
            said.append(f"the gateway has {counted(round(self.gateway), 'request')}")
        return " and ".join(said)


def values(text: str, metric: str) -> tuple[float, ...]:
    found = []
    for match in SAMPLE.finditer(text):
        if match[1] != metric:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value):
            found.append(value)
    return tuple(found)


def shown(url: str) -> str:
    """`url` for logs: without user, query and fragment, which may hold a password."""
    scheme = "https://" if url.startswith("https://") else "http://" if url.startswith("http://") else ""
    # An unencoded password may contain any character that ends a host.
    return scheme + re.split(r"[?#]", url.removeprefix(scheme).rpartition("@")[2])[0]


def observed_load(
    pipeline: Iterable[str] | None, gateway: Iterable[str] | None = None, problems: Sequence[str] = ()
) -> ObservedLoad:
    """The pods' total load; None means that there is no such pipeline or gateway.

    Every subtask that decides sees a part of the stream and decides for all: the largest number counts.
    Gateway pods report their own requests: they add up. `problems`: why other pods were not read.
    """
    texts, unknown = list(pipeline or ()), list(problems)
    wanted = [value for text in texts for value in values(text, WANTED) if 0 <= value <= MAX_WANTED]
    in_flight = sum(max(0.0, value) for text in texts for value in values(text, IN_FLIGHT))
    if pipeline is not None and not wanted:
        unknown.append("no pod of the pipeline reports how many replicas it needs")
    loads = [value for text in gateway or () for value in values(text, PEAK_LOAD) if 0 <= value <= MAX_LOAD]
    if gateway is not None and not loads:
        unknown.append("no pod of the gateway reports its load")
    more = len(unknown) - MAX_PROBLEMS
    return ObservedLoad(
        math.ceil(max(wanted, default=0.0)) if wanted or loads else None,
        in_flight,
        sum(loads) if loads else None,
        "; ".join(unknown[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else ""),
        bool(wanted),
    )
