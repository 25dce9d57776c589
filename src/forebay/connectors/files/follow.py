"""An endless source: files of a folder that appear, grow, are renamed or replaced."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import pack_state, unpack_state
from forebay.connectors.files.folder import Changes, Known, Stamp, compare, stamps
from forebay.connectors.files.lines import LinePart, Rows, begins_as_read
from forebay.connectors.files.listing import name_in, scan_problem, why
from forebay.connectors.files.reader import LineReader, compare_headers, header_of, unread_rest
from forebay.connectors.files.source import place_from, place_values
from forebay.connectors.files.unpack import UNREADABLE, UnreadableFile, check_link, members_of, packing_of
from forebay.connectors.python_source import CallLimit, IdleWait
from forebay.errors import SettingError
from forebay.flink.jvm_task import number_gauge, output_room
from forebay.flink.metric_names import GROUP, REPLACED_FILES, UNREADABLE_FOLDERS, counter_of
from forebay.flink.types import END_OF_TIME_MS, STATE

log = logging.getLogger(__name__)

SETTLED_S = 10.0
"""Until a file is unchanged for this long, an unfinished or unreadable end is not final."""
SCAN_SHARE, LOOK_SHARE = 0.03, 0.02
"""Shares of the time. A scan of 50,000 files takes 0.75 s of a core, a look 0.08 s."""


class FollowFolder(KeyedProcessFunction):
    def __init__(
        self,
        root: Path,
        reader: LineReader,
        every_s: float,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._reader = reader
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._known: dict[str, Known] | None = None
        self._pending: list[str] = []
        self._waiting: dict[str, tuple[Stamp | None, float]] = {}
        self._final: set[str] = set()
        self._open: tuple[str, Sequence[LinePart], Rows] | None = None
        self._turn: tuple[str, float] | None = None
        self._inodes: set[int] = set()
        self._scan_at_s = self._look_at_s = 0.0
        self._first_header: tuple[str, list[str]] | None = None
        self._scan_failed = False
        self._drains = False
        self._problems: dict[str, str] = {}
        self._unsure: set[str] = set()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_map_state(MapStateDescriptor("followed", Types.STRING(), STATE))
        self._replaced_files = counter_of(runtime_context, REPLACED_FILES)
        group = runtime_context.get_metrics_group().add_group(GROUP)
        self._unreadable = number_gauge(group, UNREADABLE_FOLDERS)
        self._call = CallLimit(output_room(runtime_context), clock=self._clock)
        self._idle = IdleWait(self._clock)

    def close(self) -> None:
        if self._open is not None:
            self._open[2].close()
            self._open = None

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if self._known is None:
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
        empty = True
        for record in self._records(final=False):
            empty = False
            yield record
        if not empty:
            self._idle.came()
        elif not self._pending:
            # A call looks at some hundreds of files: with a wait in each, 50,000 files would take minutes.
            self._sleep(self._idle.wait_s())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        self._scan_at_s = 0.0
        self._drains, self._turn = True, None
        yield from self._records(final=True)

    def _records(self, *, final: bool) -> Iterator[bytes]:
        if self._known is None:
            self._known = {path: unpack_known(data) for path, data in self._state.items()}
        self._call.begin()
        now_s = self._clock.monotonic_s()
        if now_s >= self._scan_at_s:
            yield from self._scan(now_s)
        elif now_s >= self._look_at_s and not (self._pending or self._scan_failed):
            self._look_for_new(now_s)
        if final:
            self._final.update(self._waiting)
            self._pending += [path for path in self._waiting if path not in self._pending]
        while self._pending:
            path = self._pending[0]
            ended = False
            for record in self._read(path, final=final or path in self._final):
                if record is not None:
                    yield record
                if not final and self._call.reached():
                    break
            else:
                ended = True
            self._put(path, self._known[path])
            if not ended:
                return
            self.close()
            self._turn = None
            self._pending.pop(0)
            if not final and self._call.reached():
                return

    def _put(self, path: str, entry: Known) -> None:
        assert self._known is not None
        self._known[path] = entry
        self._state.put(path, pack_known(entry))

    # The folder

    def _scan(self, now_s: float) -> Iterator[bytes]:
        assert self._known is not None
        self._look_at_s = now_s + self._every_s
        try:
            found = {_key(path): stamp for path, stamp in stamps(self._root)}
        except OSError as error:
            if not self._scan_failed:
                log.warning("%s; retrying", scan_problem(self._root, error))
                self._unreadable.update(1)
            self._scan_failed = True
            return
        finally:
            self._note_scan(now_s)
        if self._scan_failed:
            self._unreadable.update(0)
        self._scan_failed = False
        is_first = not any(entry.stamp for entry in self._known.values())
        changes = compare(self._known, found, self._name_of, self._is_same)
        if not is_first:
            # The first comparison only names files.
            self._note_scan(now_s)
        self._final -= changes.unsure - self._unsure
        self._unsure = changes.unsure
        if self._open is not None and self._open[0] in changes.known.keys() | changes.unsure:
            self.close()
        for path, entry in changes.known.items():
            self._put(path, entry)
            self._final.discard(path)
            self._waiting.pop(path, None)
        unread = {path for path in changes.unsure if _has_unread(self._known[path], found[path])}
        for path in unread - self._final:
            self._waiting.setdefault(path, (self._known[path].stamp, now_s))
        self._inodes = {entry.stamp.inode for entry in self._known.values() if entry.stamp is not None}
        yield from self._report(changes)
        for path, (stamp, since_s) in list(self._waiting.items()):
            if self._known[path].stamp == stamp and now_s - since_s >= SETTLED_S:
                del self._waiting[path]
                self._final.add(path)
        wanted = {
            path
            for path, entry in self._known.items()
            if (path in unread or not (entry.done or entry.gone)) and path not in self._waiting
        }
        # A file that grows all the time must not begin again before the others had their turn.
        begun = [path for path in self._pending if path in wanted]
        self._pending = [*begun, *sorted(wanted.difference(begun))]

    def _note_scan(self, began_s: float) -> None:
        took_s = self._clock.monotonic_s() - began_s
        self._scan_at_s = began_s + max(self._every_s, took_s / SCAN_SHARE)

    def _look_for_new(self, now_s: float) -> None:
        assert self._known is not None
        known = self._known
        # The next scan reports errors.
        with suppress(OSError):
            for path, stamp in stamps(self._root, lambda path: _key(path) not in known):
                key = _key(path)
                if stamp.inode not in self._inodes:
                    self._inodes.add(stamp.inode)
                    self._put(key, Known(stamp, self._name_of(key)))
                    self._pending.append(key)
        self._pending.sort()
        took_s = self._clock.monotonic_s() - now_s
        self._look_at_s = now_s + max(self._every_s, took_s / LOOK_SHARE)

    def _report(self, changes: Changes) -> Iterator[bytes]:
        assert self._known is not None
        for path, before in changes.replaced.items():
            now = self._known[path]
            self._replaced_files.inc()
            log.warning(
                "%s was replaced after line %d was read: it is read from its start as a new file, "
                "with positions that begin with %s%s",
                before.name,
                before.place.lines,
                now.name,
                now.version_mark,
            )
        for path, lost in changes.lost.items():
            how = "replaced" if path in changes.replaced else "removed"
            yield from self._unread(lost, f"the file was {how} before it was read to its end")

    def _unread(self, entry: Known, problem: str) -> Iterator[bytes]:
        yield unread_rest(f"{entry.name}{entry.version_mark}", entry.place, problem)

    def _name_of(self, key: str) -> str:
        return name_in(self._root, self._root / _path(key))

    def _is_same(self, key: str, entry: Known, whole: bool) -> bool | None:
        if entry.place.offset == 0 and entry.member == 0:
            return True
        try:
            parts = self._parts(key, entry)
            # After a failed comparison, it may be another file with the inode of one that was removed.
            whole = whole or key in self._unsure
            return entry.member < len(parts) and begins_as_read(parts[entry.member], entry.place, whole=whole)
        except OSError as error:
            # Without a number, the content is at fault.
            if error.errno is None:
                return False
            if not isinstance(error, FileNotFoundError):
                if key not in self._problems:
                    log.warning(
                        "%s cannot be compared with what was read of it: %s; retrying", entry.name, why(error)
                    )
                self._problems[key] = why(error)
            return None
        except UNREADABLE:
            return False

    def _parts(self, key: str, entry: Known) -> list[LinePart]:
        path = str(self._root / _path(key))
        check_link(path)
        if packing_of(path) != "zip":
            return [LinePart(path, entry.name)]
        return [LinePart(path, f"{entry.name}/{member}", member) for member in members_of(path)]

    # One file

    def _read(self, path: str, *, final: bool) -> Iterator[bytes | None]:
        assert self._known is not None
        try:
            if path in self._unsure and (self._open is None or self._open[0] != path):
                is_same = self._is_same(path, self._known[path], True)
                if is_same is None and path in self._problems:
                    raise UnreadableFile(self._problems[path])
                if not is_same:
                    # The next scan handles it.
                    return
            while True:
                entry = self._known[path]
                parts, rows = self._rows(path, entry)
                if rows is None:
                    # The path is another file now; the next scan handles it.
                    return
                others = not final and len(self._pending) > 1
                if (others or self._drains) and self._turn_is_over(path, entry):
                    self._pending += [path] * others
                    return
                row = rows.next(final=final)
                if row is not None:
                    label = f"{parts[entry.member].name}{entry.version_mark}"
                    place, record = self._reader.step(label, entry.place, row)
                    self._known[path] = replace(entry, place=place)
                    if place.columns is not None and entry.place.columns is None:
                        self._check_header(parts[entry.member])
                    yield record
                elif rows.unfinished:
                    self._waiting[path] = (entry.stamp, self._clock.monotonic_s())
                    return
                elif entry.member + 1 < len(parts):
                    self.close()
                    self._known[path] = Known(
                        entry.stamp, entry.name, entry.version, entry.latest, entry.member + 1
                    )
                else:
                    break
        except UNREADABLE as error:
            self.close()
            if not final:
                self._waiting[path] = (self._known[path].stamp, self._clock.monotonic_s())
                return
            yield from self._unread(self._known[path], why(error))
            self._known[path] = replace(self._known[path], reported=True)
        self._known[path] = replace(self._known[path], done=True)

    def _rows(self, path: str, entry: Known) -> tuple[Sequence[LinePart], Rows | None]:
        if self._open is None or self._open[0] != path:
            self.close()
            parts = self._parts(path, entry)
            if entry.member >= len(parts):
                raise UnreadableFile("the archive holds no data file")
            self._open = (path, parts, self._reader.rows(parts[entry.member], entry.place))
            now = os.stat(self._root / _path(path))
            stamp = entry.stamp
            # Some network file systems change a file's inode, but not its time.
            if stamp is None or (now.st_ino != stamp.inode and now.st_mtime_ns != stamp.changed_ns):
                self.close()
                return parts, None
        return self._open[1], self._open[2]

    def _turn_is_over(self, path: str, entry: Known) -> bool:
        """A file may grow faster than it is read, so its turn ends at the size that it had."""
        if self._turn is None or self._turn[0] != path:
            file = self._root / _path(path)
            size = math.inf if packing_of(file) else os.stat(file).st_size
            self._turn = path, max(size, entry.place.offset + 1)
        return entry.place.offset >= self._turn[1]

    def _check_header(self, part: LinePart) -> None:
        try:
            names = header_of(part, self._reader)
        except SettingError:
            return
        if names is not None:
            first, expected = self._first_header = self._first_header or (part.name, names)
            for warning in compare_headers(part.name, names, first, expected):
                log.warning("%s", warning)


def _has_unread(entry: Known, found: Stamp) -> bool:
    if entry.reported or entry.stamp is None:
        return False
    return not entry.done or (found.inode, found.size) != (entry.stamp.inode, entry.stamp.size)


def _key(path: str) -> str:
    return os.fsencode(path).decode("latin-1")


def _path(key: str) -> str:
    return os.fsdecode(key.encode("latin-1"))


def pack_known(entry: Known) -> bytes:
    stamp = None if entry.stamp is None else (entry.stamp.inode, entry.stamp.size, entry.stamp.changed_ns)
    own = (entry.name, entry.version, entry.latest, entry.member, entry.done, entry.gone, entry.reported)
    return pack_state(stamp, *own, place_values(entry.place))


def unpack_known(data: bytes) -> Known:
    values = unpack_state(data, "state of a followed file")
    stamp, name, version, latest, member, done, gone, reported, place = values
    found = None if stamp is None else Stamp(*stamp)
    return Known(found, name, version, latest, member, place_from(place), done, gone, reported)
