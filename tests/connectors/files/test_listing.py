"""Which files are read, in which order, and what is skipped."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

import pytest

from forebay.connectors.files.lines import files_of
from forebay.connectors.files.listing import data_files, name_in, skipped_entries
from forebay.connectors.files.reader import skipped_warnings
from forebay.connectors.files.settings import JsonlSource
from forebay.connectors.files.source import Files
from forebay.errors import SettingError
from forebay.pipeline.load import guesses_of, source_settings


def test_files_are_read_by_name_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b", "10", "2", "sub/a", ".hidden", "_new/x", "sub/lost+found/x", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert [part.name for part in files_of(tmp_path)] == [
        f"{tmp_path.name}/{name}" for name in ("10", "2", "a", "b", "sub/a")
    ]
    assert [part.name for part in files_of(tmp_path / "sub" / "a")] == ["a"]


def test_folder_that_cannot_be_read_now_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    source = JsonlSource(type="jsonl", path=str(tmp_path), follow=True)
    assert source.why_unread() == ""
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "sub":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert source.why_unread().startswith(f"source folder {tmp_path}/sub cannot be read: Permission denied")
    once = source.model_copy(update={"follow": False})
    assert once.why_unread() == "", "it was read before the run began"


def test_a_folder_that_blocks_does_not_block_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Event()
    monkeypatch.setattr("forebay.connectors.files.settings.LOOK_S", 0.0)
    monkeypatch.setattr("forebay.connectors.files.listing.folder_problem", lambda _: str(opened.wait()))
    assert JsonlSource(type="jsonl", path=str(tmp_path), follow=True).why_unread() == ""
    opened.set()


def test_names_in_positions_do_not_depend_on_the_folder_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_in(Path(), Path("a.csv")) == f"{tmp_path.name}/a.csv"
    assert name_in(Path("x/.."), Path("x/../a.csv")) == f"{tmp_path.name}/a.csv"
    assert name_in(Path("d"), Path(os.fsdecode(b"d/\xff.csv"))) == "d/\\xff.csv"


def test_links_to_folders_and_special_files_are_not_read_and_are_named(tmp_path: Path) -> None:
    folder, other = tmp_path / "in", tmp_path / "other"
    for made in (folder, other):
        made.mkdir()
        (made / "a").write_bytes(b"1\n")
    (folder / "link").symlink_to(other)
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nothing")
    (folder / "file").symlink_to(other / "a")
    (folder / ".hidden").symlink_to(other)
    os.mkfifo(folder / "pipe")
    assert [part.name for part in files_of(folder)] == ["in/a", "in/file"]
    assert skipped_entries(folder) == [
        f"{folder}/{found}, and is not read"
        for found in (
            "gone is a link that cannot be followed (No such file or directory)",
            "link is a link to a directory",
            "loop is a link that cannot be followed (Too many levels of symbolic links)",
            "pipe is neither a file nor a directory",
        )
    ]
    assert skipped_entries(folder / "a") == []
    for number in range(3):
        os.mkfifo(folder / f"pipe{number}")
    assert skipped_warnings(Files(folder))[-1] == "2 more links or special files that are not read"


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"1\n")
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "sub":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    settings = {"type": "jsonl", "path": str(tmp_path)}
    for read in (
        lambda: list(files_of(tmp_path)),
        lambda: skipped_warnings(Files(tmp_path)),
        lambda: source_settings(str(tmp_path)),
        lambda: guesses_of(settings),
    ):
        with pytest.raises(SettingError) as raised:
            read()
        assert str(raised.value) == (
            f"source folder {tmp_path}/sub cannot be read: Permission denied; make it readable, or leave it "
            "out: rename it to begin with `_`"
        )


def test_a_folder_that_is_removed_while_its_parent_is_listed_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"1\n")
    scan = os.scandir

    def late(path: Path) -> object:
        if path.name == "sub":
            path.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert data_files(tmp_path) == [tmp_path / "a"]
