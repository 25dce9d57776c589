"""Compare two scans of a folder: new, grown, renamed, replaced and missing files.

A file stays the same while it begins with the bytes that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from forebay.connectors.files.lines import START, LinePlace
from forebay.connectors.files.listing import entries_of, is_data


@dataclass(frozen=True, slots=True)
class Stamp:
    inode: int
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Known:
    """`stamp` None: the file was renamed and the path is free. `done`: read to the end of this stamp.
    `reported`: the rest is a dead letter until the file can be compared again."""

    stamp: Stamp | None
    name: str
    version: int = 1
    latest: int = 1
    member: int = 0
    place: LinePlace = START
    done: bool = False
    gone: bool = False
    reported: bool = False

    @property
    def version_mark(self) -> str:
        return "@" if self.version == 1 else f"@{self.version}:"


@dataclass(frozen=True, slots=True)
class Changes:
    """`known`: changed entries as they are now; `replaced` and `lost`: as they were.

    `unsure`: files that could not be compared; they must not be read on.
    """

    known: dict[str, Known]
    replaced: dict[str, Known]
    lost: dict[str, Known]
    unsure: set[str] = field(default_factory=set)


Same = Callable[[str, Known, bool], bool | None]
"""Whether a file begins with what was read; None: unknown. True compares all bytes, False the last line."""


def stamps(root: Path, wanted: Callable[[str], bool] = bool) -> Iterator[tuple[str, Stamp]]:
    """Raises `OSError` if a folder cannot be read."""
    for path, entry in entries_of(root):
        try:
            if wanted(path) and is_data(entry):
                found = entry.stat()
                yield path, Stamp(found.st_ino, found.st_size, found.st_mtime_ns)
        except FileNotFoundError:
            continue


def compare(
    known: Mapping[str, Known], found: Mapping[str, Stamp], name_of: Callable[[str], str], same: Same
) -> Changes:
    changes = Changes({}, {}, {})
    renamed = _renamed(known, found, same, changes.unsure)
    left = {before for before, _ in renamed.values()}
    for path, stamp in sorted(found.items()):
        entry = known.get(path)
        if path in renamed:
            _, moved = renamed[path]
            latest = 0 if entry is None else entry.latest
            moved = replace(moved, latest=latest, gone=False)
            if path in changes.unsure:
                moved = _grown(moved)
            else:
                done = moved.done and moved.stamp == stamp
                moved = replace(moved, stamp=stamp, done=done, reported=done and moved.reported)
            changes.known[path] = moved
            if entry is not None and path not in left:
                # For example the oldest log of a rotation, overwritten by the next one.
                _lost(changes, path, entry)
        elif entry is None:
            changes.known[path] = Known(stamp, name_of(path))
        elif entry.stamp == stamp:
            if entry.gone:
                changes.known[path] = replace(entry, gone=False)
        elif entry.stamp is not None and path not in left:
            grown = entry.stamp.inode == stamp.inode and stamp.size > entry.stamp.size
            is_same = same(path, entry, not grown)
            if is_same:
                changes.known[path] = replace(entry, stamp=stamp, done=False, gone=False, reported=False)
            elif is_same is None:
                changes.unsure.add(path)
                if grown and _grown(entry) != entry:
                    changes.known[path] = _grown(entry)
            else:
                changes.replaced[path] = entry
                _lost(changes, path, entry)
                changes.known[path] = _next(entry, stamp, name_of(path))
        else:
            changes.known[path] = _next(entry, stamp, name_of(path))
    for path, entry in known.items():
        if path in found or entry.stamp is None:
            continue
        if path in left:
            changes.known[path] = replace(entry, stamp=None, done=True)
        elif not entry.gone:
            changes.known[path] = replace(entry, gone=True)
            _lost(changes, path, entry)
    return changes


def _renamed(
    known: Mapping[str, Known], found: Mapping[str, Stamp], same: Same, unsure: set[str]
) -> dict[str, tuple[str, Known]]:
    """New path → (old path, entry). An inode is reused once a file is removed."""
    moved = {
        entry.stamp.inode: (path, entry)
        for path, entry in known.items()
        if entry.stamp is not None
        and entry.place.offset > 0
        and (path not in found or found[path].inode != entry.stamp.inode)
    }
    renamed: dict[str, tuple[str, Known]] = {}
    for path, stamp in found.items():
        entry = known.get(path)
        if entry is not None and entry.stamp is not None and entry.stamp.inode == stamp.inode:
            continue
        before, candidate = moved.get(stamp.inode, ("", None))
        if candidate is None or candidate.stamp is None:
            continue
        if stamp != candidate.stamp and stamp.size <= candidate.stamp.size:
            continue
        is_same = same(path, candidate, True)
        if is_same is None and stamp != candidate.stamp:
            unsure.add(path)
        if is_same is not False:
            renamed[path] = (before, candidate)
            del moved[stamp.inode]
    return renamed


def _grown(entry: Known) -> Known:
    return replace(entry, done=False, gone=False) if entry.done and not entry.reported else entry


def _next(entry: Known, stamp: Stamp, name: str) -> Known:
    return Known(stamp, name, version=entry.latest + 1, latest=entry.latest + 1)


def _lost(changes: Changes, path: str, entry: Known) -> None:
    if not entry.done and not entry.gone:
        changes.lost[path] = entry
