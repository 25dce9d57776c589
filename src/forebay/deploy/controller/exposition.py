"""What the pods of a pipeline and of a gateway report: Prometheus' text format, of which only numbers by
metric are read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.counted import counted
from forebay.deploy.kubernetes.metrics import IN_FLIGHT, WANTED
from forebay.gateway.peak_load import PEAK_LOAD

MAX_CHARS = 16 << 20
MAX_WANTED = 10_000
MAX_LOAD = 1_000_000
MAX_PROBLEMS = 4
PARTLY_READ = "not all metrics are read, so no replica is taken away"
SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t]*$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """What the replicas have to do.

    `wanted`: how many of them the pipeline wants; None if nothing is known at all. `in_flight`: requests of
    the pipeline that are at replicas. `gateway`: requests of the gateway that are at replicas or wait for
    one. `pipeline`: whether it is known what the pipeline wants; `gateway` is None if it is not known, or
    there is none. `problems`: why the load may be larger; empty if all of it is known.
    """

    wanted: int | None = None
    in_flight: float = 0.0
    gateway: float | None = None
    problems: str = ""
    pipeline: bool = True

    @property
    def requests(self) -> float:
        """Those at replicas, or waiting for one."""
        return self.in_flight + (self.gateway or 0.0)

    def replicas(self, requests_per_replica: int) -> float:
        """The replicas that pipeline and gateway need together: both send to the same ones, so they add
        up."""
        return (self.wanted or 0) + (self.gateway or 0.0) / requests_per_replica

    def __str__(self) -> str:
        said = [f"the pipeline wants {self.wanted}"] if self.pipeline else []
        if self.gateway is not None:
            said.append(f"the gateway has {counted(round(self.gateway), 'request')}")
        return " and ".join(said)


def values(text: str, metric: str) -> tuple[float, ...]:
    """The finite values of a metric, over all its labels."""
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
    """`url` for people and logs: without what may hold a password, which is the user, the query and the
    fragment."""
    scheme = "https://" if url.startswith("https://") else "http://" if url.startswith("http://") else ""
    # A password that is not encoded may hold any of the signs that end a host.
    return scheme + re.split(r"[?#]", url.removeprefix(scheme).rpartition("@")[2])[0]


def observed_load(
    pipeline: Iterable[str] | None, gateway: Iterable[str] | None = None, problems: Sequence[str] = ()
) -> ObservedLoad:
    """What the pods of a pipeline and of a gateway report together, None for one that does not exist;
    `problems` are why other pods were not read.

    Every subtask of a pipeline that decides sees its own part of the stream, and decides for all: the largest
    number counts. Each pod of a gateway reports its own requests: they add up.
    """
    texts, unknown = list(pipeline or ()), list(problems)
    wanted = [value for text in texts for value in values(text, WANTED) if 0 <= value <= MAX_WANTED]
    in_flight = sum(max(0.0, value) for text in texts for value in values(text, IN_FLIGHT))
    if pipeline is not None and not wanted:
        unknown.append("no pod of the pipeline reports how many replicas it wants")
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
