"""The table planner is unpacked once, completely, and never in the way."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from forebay.flink.class_archive import with_planner, without_planner

PLANNER = b"classes" * 1000


@pytest.fixture
def loader(tmp_path: Path) -> str:
    path = tmp_path / "flink-table-planner-loader-2.3.0.jar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr("flink-table-planner.jar", PLANNER)
    return str(path)


def test_planner_replaces_its_loader(loader: str, tmp_path: Path) -> None:
    first, planner, last = with_planner(("/a.jar", loader, "/b.jar"), tmp_path / "java")
    assert (first, last) == ("/a.jar", "/b.jar")
    assert Path(planner).read_bytes() == PLANNER
    assert Path(planner).parent == tmp_path / "java"
    born = Path(planner).stat().st_mtime_ns
    assert with_planner((loader,), tmp_path / "java") == (planner,)
    assert Path(planner).stat().st_mtime_ns == born, "an archive of classes is bound to the time of its jars"


def test_incomplete_planner_is_unpacked_again(loader: str, tmp_path: Path) -> None:
    (planner,) = with_planner((loader,), tmp_path)
    Path(planner).write_bytes(PLANNER[:10])
    assert with_planner((loader,), tmp_path) == (planner,)
    assert Path(planner).read_bytes() == PLANNER
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("content", [b"", b"no jar"])
def test_class_path_is_unchanged_without_a_planner(content: bytes, tmp_path: Path) -> None:
    broken = tmp_path / "flink-table-planner-loader-9.jar"
    broken.write_bytes(content)
    with zipfile.ZipFile(tmp_path / "flink-table-planner-loader-8.jar", "w") as empty:
        empty.writestr("other", b"")
    path = (
        str(broken),
        str(tmp_path / "flink-table-planner-loader-8.jar"),
        "/gone/flink-table-planner-loader-7",
    )
    assert with_planner(path, tmp_path / "java") == path


def test_planner_is_left_out_without_tables(loader: str) -> None:
    jars = ("/flink-dist-2.3.0.jar", loader, "/flink-scala_2.12-2.3.0.jar", "/flink-table-runtime-2.3.0.jar")
    assert without_planner(jars) == ("/flink-dist-2.3.0.jar", "/flink-table-runtime-2.3.0.jar")
