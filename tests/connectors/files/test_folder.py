"""Changes of a folder's files: detected from their contents, not their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.connectors.files.folder import Changes, Known, Stamp, compare, stamps
from forebay.connectors.files.lines import LinePlace

READ = Known(Stamp(1, 10, 100), "in/a", place=LinePlace(offset=10, lines=2), done=True)


def changes(
    known: dict[str, Known],
    found: dict[str, Stamp],
    *,
    same: bool | None = None,
    asked: list[object] | None = None,
) -> Changes:
    def is_same(path: str, entry: Known, whole: bool) -> bool | None:
        if asked is not None:
            asked.append((path, whole))
        return same

    return compare(known, found, lambda path: f"in/{path}", is_same)


def test_a_file_that_appears_is_read() -> None:
    found = changes({}, {"b": Stamp(2, 5, 1)})
    assert found.known == {"b": Known(Stamp(2, 5, 1), "in/b")}
    assert not found.replaced


def test_unchanged_file_is_not_opened() -> None:
    asked: list[object] = []
    assert changes({"a": READ}, {"a": Stamp(1, 10, 100)}, asked=asked) == Changes({}, {}, {})
    assert asked == []


@pytest.mark.parametrize(
    ("stamp", "whole"),
    [
        (Stamp(1, 15, 200), False),
        (Stamp(1, 10, 200), True),
        (Stamp(7, 15, 200), True),
        (Stamp(1, 9, 200), True),
    ],
)
def test_file_with_other_content_is_new(stamp: Stamp, whole: bool) -> None:
    asked: list[object] = []
    found = changes({"a": READ}, {"a": stamp}, same=False, asked=asked)
    assert asked == [("a", whole)]
    assert found.known == {"a": Known(stamp, "in/a", version=2, latest=2)}
    assert (found.replaced, found.lost) == ({"a": READ}, {})
    half = replace(READ, done=False)
    assert changes({"a": half}, {"a": stamp}, same=False).lost == {"a": half}


@pytest.mark.parametrize("stamp", [Stamp(1, 15, 200), Stamp(1, 10, 200), Stamp(7, 15, 200)])
def test_file_with_the_same_beginning_continues(stamp: Stamp) -> None:
    found = changes({"a": READ}, {"a": stamp}, same=True)
    assert found == Changes({"a": replace(READ, stamp=stamp, done=False)}, {}, {})


def test_file_that_cannot_be_compared_keeps_its_entry() -> None:
    assert changes({"a": READ}, {"a": Stamp(7, 10, 200)}, same=None) == Changes({}, {}, {}, {"a"})


@pytest.mark.parametrize("stamp", [Stamp(1, 10, 100), Stamp(1, 15, 200)])
def test_renamed_file_that_cannot_be_compared_takes_its_entry_along(stamp: Stamp) -> None:
    found = changes({"a": READ}, {"a": Stamp(3, 4, 300), "b": stamp, "c": Stamp(4, 1, 1)}, same=None)
    assert found.known == {
        "a": Known(Stamp(3, 4, 300), "in/a", version=2, latest=2),
        "b": replace(READ, latest=0, done=stamp == READ.stamp),
        "c": Known(Stamp(4, 1, 1), "in/c"),
    }
    assert (found.replaced, found.lost) == ({}, {})
    # Without another stamp, it is the same file.
    assert found.unsure == ({"b"} if stamp != READ.stamp else set())


def test_rotated_log_continues_under_its_new_name() -> None:
    older = Known(Stamp(9, 30, 90), "in/a", place=LinePlace(offset=30), done=True)
    known = {"a": replace(READ, version=2, latest=2), "a.1": replace(older, latest=0)}
    now = {"a": Stamp(3, 4, 300), "a.1": Stamp(1, 12, 200), "a.2": Stamp(9, 30, 90)}
    found = changes(known, now, same=True)
    assert found.known["a.2"] == replace(older, latest=0)
    assert found.known["a.1"] == replace(known["a"], stamp=now["a.1"], latest=0, done=False)
    assert found.known["a"] == Known(now["a"], "in/a", version=3, latest=3)
    assert (found.replaced, found.lost) == ({}, {})


def test_versions_of_a_name_continue_after_it_was_empty() -> None:
    first = changes({"a": READ}, {"b": Stamp(1, 10, 100)}, same=True)
    assert first.known["a"].stamp is None
    assert first.known["b"] == replace(READ, latest=0)
    then = changes(first.known, {"a": Stamp(5, 3, 3), "b": Stamp(1, 10, 100)}, same=True)
    assert then.known == {"a": Known(Stamp(5, 3, 3), "in/a", version=2, latest=2)}


def test_reused_inode_is_a_new_file() -> None:
    found = changes({"a": READ}, {"b": Stamp(1, 10, 555)}, same=True)
    assert found.known["b"] == Known(Stamp(1, 10, 555), "in/b")
    assert found.known["a"].gone


def test_a_file_that_is_removed_before_its_end_is_lost() -> None:
    half = replace(READ, done=False)
    found = changes({"a": half, "b": READ}, {})
    assert found.lost == {"a": half}
    assert all(entry.gone for entry in found.known.values())
    assert changes(found.known, {}) == Changes({}, {}, {})


def test_folder_that_was_absent_is_not_read_again() -> None:
    away = changes({"a": READ}, {}).known
    assert changes(away, {"a": Stamp(1, 10, 100)}).known == {"a": READ}
    moved = changes(away, {"a": Stamp(8, 10, 700)}, same=True).known
    assert moved == {"a": replace(READ, stamp=Stamp(8, 10, 700), done=False)}


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    for name in ("b", "sub/a", ".hidden", "_new/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / "loop").symlink_to("loop")
    assert sorted(path for path, _ in stamps(tmp_path)) == ["b", "sub/a"]
    with pytest.raises(FileNotFoundError):
        list(stamps(tmp_path / "none"))
