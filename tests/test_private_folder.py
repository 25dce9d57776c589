"""Folders that nobody else reads, and those that nobody else may write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.private_folder import check_nobody_else_writes, private_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_private_whatever_it_was(tmp_path: Path) -> None:
    made, open_to_all = tmp_path / "a" / "b", tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert private_folder(made) == made
    assert private_folder(made) == made
    assert mode(private_folder(open_to_all)) == mode(made) == mode(made.parent) == 0o700


def test_a_link_that_somebody_has_put_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="link: expected a folder, found a link or a file; remove it"):
        private_folder(tmp_path / "link")
    with pytest.raises(SettingError, match="file cannot be made a private folder"):
        private_folder(tmp_path / "file")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(SettingError, match="belongs to user 12345, not to you"):
        private_folder(tmp_path)
    with pytest.raises(SettingError, match=r"belongs to user 12345, .* make it yours \(chown\)"):
        check_nobody_else_writes(tmp_path)


def test_state_that_others_may_write_is_refused(tmp_path: Path) -> None:
    check_nobody_else_writes(tmp_path / "missing")
    for allowed in (0o700, 0o755):
        tmp_path.chmod(allowed)
        check_nobody_else_writes(tmp_path)
    for refused in (0o770, 0o707, 0o722):
        tmp_path.chmod(refused)
        with pytest.raises(SettingError, match=r"others may write to .* \(chmod go-w\)"):
            check_nobody_else_writes(tmp_path)
