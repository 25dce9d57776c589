"""What a run wrote, counted: an embedded cluster takes its last metrics with it when its job ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from forebay.apps.base import FAILURES
from forebay.config.spec import PipelineSpec
from forebay.connectors.files.sink import Part, committed_parts
from forebay.engine.content import CUT
from forebay.json_numbers import read_json
from forebay.runtime.flink_process import StdoutResults
from forebay.runtime.snapshot import Snapshot
from forebay.s3.location import Location, location_of


class OutputCounts:
    """Made before the run starts: what lies in the sinks already is not counted."""

    def __init__(self, spec: PipelineSpec, printed: StdoutResults | None) -> None:
        self._printed = printed
        self._one_each = spec.application is None
        written = {key: location_of(path) for key, path in spec.directories().items()}
        self._results = written.get("sink.path")
        self._letters = written.get("dead_letters.path")
        self._before = {*self._parts(self._results), *self._parts(self._letters)}

    def since(self, last: Snapshot) -> Snapshot:
        """`last` with the exact numbers where results went to files; reads what was written."""
        letters, failed = last.dead_letters, Counter[str]()
        if self._letters is not None:
            failed = Counter(read_json(line)["cause"] for line in self.dead_letters())
            letters = failed.total()
        if self._results is not None:
            cut, named = self._failures_in_results()
            failed += named
            last = replace(last, cut_answers=cut)
        if self._letters is None or (self._results is None and not self._one_each):
            # Some are in no file: of those, only the metrics know.
            failed |= Counter(last.failed)
        last = replace(last, failed=dict(failed))
        if self._results is None and self._printed is None:
            # A topic is not counted: it may hold more than this run's, or less by now.
            return replace(last, dead_letters=letters)
        counted = self._results_in_files() if self._printed is None else self._results_printed()
        if counted is None:
            return replace(last, dead_letters=letters)
        results, prompt_tokens, completion_tokens = counted
        return replace(
            last,
            results=results,
            dead_letters=letters,
            # An application's results are not one for each event.
            accepted=results + letters if self._one_each else last.accepted,
            in_flight=0,
            pending=0,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )

    def _failures_in_results(self) -> tuple[int, Counter[str]]:
        """How many answers were cut, and the failed calls that results name, by cause."""
        failed, cut = Counter[str](), 0
        for line in self._lines(self._results):
            result = read_json(line)
            cut += result.get("finish_reason") == CUT
            if not self._one_each:
                failed.update(result["answer"].get(FAILURES) or {})
        return cut, failed

    def dead_letters(self) -> Iterator[bytes]:
        """The dead letters that went to files, as lines; reads them."""
        return self._lines(self._letters)

    def _results_in_files(self) -> tuple[int, int, int]:
        found: Counter[str] = Counter()
        for line in self._lines(self._results):
            usage = read_json(line)["usage"]
            found["results"] += 1
            found["prompt"] += usage["prompt_tokens"]
            found["completion"] += usage["completion_tokens"]
        return found["results"], found["prompt"], found["completion"]

    def _results_printed(self) -> tuple[int, int, int] | None:
        """None where there were none, or a JVM printed them that an earlier run of this process started."""
        printed = self._printed
        assert printed is not None
        printed.settle()
        return (
            (printed.results, printed.prompt_tokens, printed.completion_tokens) if printed.results else None
        )

    def _lines(self, path: Location | None) -> Iterator[bytes]:
        for part in self._parts(path):
            if part not in self._before:
                yield from part.lines()

    @staticmethod
    def _parts(path: Location | None) -> list[Part]:
        return [] if path is None else committed_parts(path)
