"""What the pipeline's pods tell: Prometheus' text format, of which only numbers by metric are read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.deploy.kubernetes.metrics import IN_FLIGHT, WANTED

MAX_CHARS = 16 << 20
MAX_WANTED = 10_000
MAX_PROBLEMS = 4
PARTLY_READ = "not all metrics of the pipeline are read, so no replica is taken away"
SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t]*$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class PipelineSays:
    """How many replicas are wanted, None where no pod says it, and the requests in flight in all pods.
    `problems`: why some were not read, so that more may be wanted and in flight; empty where all were."""

    wanted: int | None = None
    in_flight: float = 0.0
    problems: str = ""


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


def what_pipeline_says(texts: Iterable[str], problems: Sequence[str] = ()) -> PipelineSays:
    """What all pods of a pipeline say together; `problems` are why others were not read. Every subtask that
    decides sees its own share of the stream: the largest number counts."""
    every = list(texts)
    wanted = [value for text in every for value in values(text, WANTED) if 0 <= value <= MAX_WANTED]
    in_flight = sum(max(0.0, value) for text in every for value in values(text, IN_FLIGHT))
    left_out = len(problems) - MAX_PROBLEMS
    why = "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {left_out} more" if left_out > 0 else "")
    return PipelineSays(math.ceil(max(wanted)) if wanted else None, in_flight, why)
