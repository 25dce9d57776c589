"""A pipeline under one load: its figures, why they are invalid, and its document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from benchmarks.grid.signals import sample_figures
from forebay.bench.metrics import Distribution
from forebay.bench.stream.figures import StreamFigures, stream_figures
from forebay.bench.stream.options import EventLoad
from forebay.bench.stream.records import StreamRun
from forebay.bench.stream.verdict import judge_stream
from forebay.errors import ForebayError

PERCENTILES = (50.0, 90.0, 99.0)
MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Streamed:
    """A pipeline in front of the engine, under one load."""

    run: StreamRun
    figures: StreamFigures

    @property
    def reasons(self) -> tuple[str, ...]:
        failed = self.figures.failed
        letters = [f"{failed} of {self.figures.offered} events became dead letters"] if failed else []
        return (*letters, *judge_stream(self.run).reasons)


class Session(Protocol):
    """A running pipeline that takes one load after the other."""

    def measure(self, load: EventLoad) -> StreamRun: ...


def stream_load(session: Session, load: EventLoad) -> Streamed:
    """Process a load; blocks."""
    run = session.measure(load)
    return Streamed(run, stream_figures(run))


Item = TypeVar("Item")


def stream_each(
    items: Iterable[Item],
    open_session: Callable[[], AbstractContextManager[Session]],
    load_one: Callable[[Session, Item], Streamed],
) -> Iterator[tuple[Item, Streamed | None, str | None]]:
    """Measure `items` in order over one pipeline: each with its figures, or what failed, or both.

    If the pipeline fails under an item, the next gets another pipeline. If one does not start, all items that
    are left have failed: it would not start for them either. Ends after an interrupted load.
    """
    waiting = list(items)
    while waiting:
        current: list[Item] = []
        try:
            with open_session() as session:
                while waiting:
                    current = [waiting.pop(0)]
                    found = load_one(session, current[0])
                    failure = found.run.failure
                    yield current[0], found, failure
                    if failure is None and not found.run.complete:
                        return
                    current = []
                    if failure is not None:
                        break
        except ForebayError as error:
            failed, waiting = (current, waiting) if current else (waiting, [])
            for item in failed:
                yield item, None, first_line(error)


def first_line(error: ForebayError) -> str:
    return str(error).strip().partition("\n")[0][:MAX_CHARS]


def streamed_document(streamed: Streamed) -> dict[str, Any]:
    """The figures of a pipeline: `answered_s` and `committed_s` from an event's own time, `stages_s` by
    stage; of results that stand for many events, if these are `followed`."""
    figures, run = streamed.figures, streamed.run
    lag = figures.lag.get("answered")
    checkpoint = figures.checkpoint
    return {
        "followed": run.noun,
        "events": figures.offered,
        "committed": figures.committed,
        "failed": figures.failed,
        "lost": figures.lost,
        "doubled": figures.doubled,
        "duration_s": figures.duration_s,
        "answered_per_s": figures.answered_per_s,
        "committed_per_s": figures.committed_per_s,
        "prompt_tokens": figures.prompt_tokens,
        "output_tokens": figures.output_tokens,
        "output_tokens_per_s": figures.answered_per_s * figures.output_tokens / max(figures.offered, 1),
        **{
            f"{name}_s": distribution_document(figures.latency.get(name))
            for name in ("answered", "committed")
        },
        "stages_s": {name: distribution_document(found) for name, found in figures.stages.items()},
        "lag_per_s": None if lag is None else asdict(lag),
        "most_lag": figures.most_lag.get("answered"),
        "checkpoints": figures.checkpoints,
        "checkpoint_s": distribution_document(checkpoint.get("duration_s")),
        "state_bytes": distribution_document(checkpoint.get("state_bytes")),
        "others_cores": run.others_cores,
        "resources": sample_figures(run.samples, run.duration_s),
    }


def distribution_document(found: Distribution | None) -> dict[str, float | None] | None:
    """Mean and p50, p90, p99 as far as the samples allow."""
    if found is None:
        return None
    told = {f"p{percent:g}": found.percentiles.get(percent) for percent in PERCENTILES}
    return {"mean": found.mean, **told, "max": found.maximum}


def figure(cell: Mapping[str, Any], *path: str) -> float | None:
    at: Any = cell
    for name in path:
        at = at.get(name) if isinstance(at, Mapping) else None
    return float(at) if isinstance(at, int | float) else None
