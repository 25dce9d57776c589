"""A run's output: results on standard output, and exact counts at the end, when metrics are gone."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from forebay.apps.base import FAILURES
from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.clients.s3.location import Location, location_of
from forebay.connectors.base import DEAD_LETTERS, RESULTS
from forebay.connectors.files.sink import Part, committed_parts
from forebay.connectors.written_counts import EndNote, WrittenCosts, WrittenCounts, noted_counts
from forebay.engine.answer import CUT
from forebay.errors import PipelineFailed, SettingError
from forebay.json_numbers import read_json
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import StateStore
from forebay.untrusted_text import replace_controls

log = logging.getLogger(__name__)


CHUNK_BYTES = 1 << 16
STDOUT, STDERR = 1, 2


class StdoutResults:
    """Forwards, on a thread, the output of a JVM started within `taken`, or of processes given `fileno`.

    Result lines go to `out`, others to `odd`. When nobody reads `out`, `closed` is set and later results are
    dropped.
    """

    def __init__(self, out: int = STDOUT, odd: int = STDERR) -> None:
        self.results = self.prompt_tokens = self.completion_tokens = 0
        self.costs = WrittenCosts()
        self.closed = False
        self._read, write = os.pipe()
        self._write: int | None = write
        self._out, self._odd = os.dup(out), os.dup(odd)
        self._seen = os.isatty(out)
        self._ended = False
        self._lock = threading.Lock()
        threading.Thread(target=self._pass_on, name="printed-results", daemon=True).start()

    def fileno(self) -> int:
        assert self._write is not None
        return self._write

    def close(self) -> None:
        if self._write is not None:
            os.close(self._write)
            self._write = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        sys.stdout.flush()
        saved = os.dup(STDOUT)
        os.dup2(self.fileno(), STDOUT)
        self.close()
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(saved, STDOUT)
            os.close(saved)

    def check(self) -> None:
        if self.closed:
            raise PipelineFailed(
                "standard output was closed, and the job is cancelled; run the same command to "
                "resume from the newest checkpoint"
            )

    def settle(self) -> None:
        """Block until all output before this call is forwarded and counted."""
        while True:
            with self._lock:
                if self._ended or not select.select([self._read], [], [], 0)[0]:
                    return
            time.sleep(0.001)

    def _pass_on(self) -> None:
        rest = b""
        while not self._ended:
            select.select([self._read], [], [])
            # Under the lock, so that whenever the lock is free, all data read is counted.
            with self._lock:
                chunk = os.read(self._read, CHUNK_BYTES)
                *lines, rest = (rest + chunk).split(b"\n")
                results: list[bytes] = []
                odd: list[bytes] = []
                for line in filter(None, lines):
                    (results if self._count(line) else odd).append(line)
                self._pass_results(results)
                if odd:
                    with suppress(OSError):
                        os.write(self._odd, _plain(b"\n".join((*odd, b""))))
                self._ended = not chunk
        for end in (self._read, self._out, self._odd):
            os.close(end)

    def _count(self, line: bytes) -> bool:
        try:
            result = read_json(line)
            usage = result["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
            self.costs.add_line(result)
        except (ValueError, TypeError, KeyError, IndexError):
            return False
        self.results += 1
        return True

    def _pass_results(self, lines: list[bytes]) -> None:
        text = b"".join(line + b"\n" for line in lines)
        left = memoryview(_plain(text) if self._seen else text)
        try:
            while left and not self.closed:
                left = left[os.write(self._out, left) :]
        except OSError:
            self.closed = True


def _plain(text: bytes) -> bytes:
    return replace_controls(text.decode("utf-8", "replace")).encode()


class OutputCounts:
    """Create it before the run starts: lines already in the sinks are not counted. Raises `SettingError`."""

    def __init__(self, spec: PipelineSpec, printed: StdoutResults | None) -> None:
        self._printed = printed
        self._one_each = spec.application is None
        written = {key: location_of(path) for key, path in spec.directories().items()}
        self._results = written.get("sink.path")
        self._letters = written.get("dead_letters.path")
        before = [part for key in ("sink.path", "dead_letters.path") for part in _parts_at(key, written)]
        self._before = {(part.folder, part.name): part.size for part in before}

    def since(self, last: Snapshot, notes: Sequence[EndNote] = ()) -> Snapshot:
        """Replace counts with exact ones, if available, from files, printed results and `notes`."""
        letters, results = self._dead_letters_written(notes), self._results_written(notes)
        failed, cut = Counter[str](), last.cut_answers
        if letters is not None:
            failed += letters.failed
            last = replace(last, dead_letters=letters.dead_letters)
        if self._results is not None:
            cut, named = self._failures_in_results()
            failed += named
        elif results is not None and self._printed is None:
            cut = results.cut_answers
        if letters is None or (self._results is None and not self._one_each):
            # Some are in no file; only the metrics count those.
            failed |= Counter(last.failed)
        last = replace(last, failed=dict(failed), cut_answers=cut)
        if letters is not None and results is not None:
            last = self._with_costs(last, letters, results)
        if results is None:
            return last
        return replace(
            last,
            results=results.results,
            # An application's results do not correspond to single events.
            accepted=results.results + last.dead_letters if self._one_each else last.accepted,
            in_flight=0,
            pending=0,
            prompt_tokens=results.prompt_tokens,
            completion_tokens=results.completion_tokens,
        )

    def _with_costs(self, last: Snapshot, letters: WrittenCounts, results: WrittenCounts) -> Snapshot:
        costs = WrittenCounts.sum((letters, results)).costs
        written = costs.pico
        if not self._one_each and last.cost_pico is not None:
            # Of calls after which an application wrote nothing, only the metrics have the cost.
            written = max(written or 0, last.cost_pico)
        return replace(last, cost_pico=written, cost_by_key=costs.by_key)

    def _dead_letters_written(self, notes: Sequence[EndNote]) -> WrittenCounts | None:
        if self._letters is None:
            return noted_counts(notes, DEAD_LETTERS)
        found = WrittenCounts()
        for line in map(read_json, self.dead_letters()):
            found.dead_letters += 1
            found.failed[line["cause"]] += 1
            found.costs.add_line(line)
        return found

    def _results_written(self, notes: Sequence[EndNote]) -> WrittenCounts | None:
        if self._printed is not None:
            return self._results_printed(self._printed)
        return noted_counts(notes, RESULTS) if self._results is None else self._results_in_files()

    def _failures_in_results(self) -> tuple[int, Counter[str]]:
        failed, cut = Counter[str](), 0
        for line in self._lines(self._results):
            result = read_json(line)
            cut += result.get("finish_reason") == CUT
            if not self._one_each:
                failed.update(result["answer"].get(FAILURES) or {})
        return cut, failed

    def dead_letters(self) -> Iterator[bytes]:
        return self._lines(self._letters)

    def _results_in_files(self) -> WrittenCounts:
        found = WrittenCounts()
        for line in self._lines(self._results):
            result = read_json(line)
            usage = result["usage"]
            found.results += 1
            found.costs.add_line(result)
            found.prompt_tokens += usage["prompt_tokens"]
            found.completion_tokens += usage["completion_tokens"]
        return found

    @staticmethod
    def _results_printed(printed: StdoutResults) -> WrittenCounts | None:
        printed.settle()
        if not printed.results:
            return None
        return WrittenCounts(
            results=printed.results,
            prompt_tokens=printed.prompt_tokens,
            completion_tokens=printed.completion_tokens,
            costs=printed.costs,
        )

    def _lines(self, path: Location | None) -> Iterator[bytes]:
        for part in self._parts(path):
            known = self._before.get((part.folder, part.name), 0)
            if part.size > known:
                yield from part.lines(known)

    @staticmethod
    def _parts(path: Location | None) -> list[Part]:
        return [] if path is None else committed_parts(path)


def _parts_at(key: str, written: Mapping[str, Location]) -> list[Part]:
    try:
        return committed_parts(written[key]) if key in written else []
    except OSError as error:
        raise SettingError(f"{key}: {written[key]} cannot be read: {error.strerror}") from None


def end_notes(store: StateStore, job: str) -> list[EndNote]:
    try:
        return [EndNote.decode(note) for note in store.end_notes(job)]
    except (OSError, StoreAway, StoreRefused) as error:
        log.warning("cannot read the counts that job %s wrote at its end: %s", job, error)
        return []
