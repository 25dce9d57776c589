"""Measure a pipeline end to end.

    run = measure_stream(StreamOptions(pipeline=Path("topics.yaml"), load=EventLoad(events=300)))
    figures = stream_figures(run, options.slo)

Several loads over one warm pipeline:

    with StreamSession(options) as session:
        session.warm_up()
        runs = [session.measure(load) for load in loads]
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from forebay.bench.stream.options import EventLoad, StreamOptions
from forebay.bench.stream.records import StreamRun
from forebay.errors import SettingError

Note = Callable[[str], None]


class StreamSession:
    """A pipeline that runs, with its feed and its engine, for as long as the block.

    Entering starts everything and blocks until the pipeline's first result is committed. Raises
    `SettingError` for a pipeline that is wrong or cannot be measured, and `LaunchError` where it does not
    start. Nothing that was started outlives the block.
    """

    def __init__(self, options: StreamOptions, *, note: Note = lambda _: None) -> None:
        self._options = options
        self._note = note

    def warm_up(self) -> None:
        """Let `warm_events` through; blocks until they are committed."""
        raise SettingError("not there yet")

    def measure(self, load: EventLoad) -> StreamRun:
        """Let the load through, and give what was seen of each event; blocks until all are committed, or
        `patience_s` after the last was due. After Ctrl-C the run is what came until then, not `complete`."""
        raise SettingError("not there yet")

    def __enter__(self) -> StreamSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def measure_stream(options: StreamOptions, *, note: Note = lambda _: None) -> StreamRun:
    """Run the pipeline under its load, and give what was seen of each event; blocks.

    Raises as `StreamSession` does.
    """
    with StreamSession(options, note=note) as session:
        session.warm_up()
        return session.measure(options.load)
