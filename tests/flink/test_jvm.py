"""A JVM ends with its owner, however that ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from forebay.errors import LaunchError
from forebay.flink import jvm as jvm_module
from forebay.flink.jvm import TEMPORARY, Jvm, java_environment, launch_jvm
from forebay.processes import wait_gone
from forebay.testing.waiting import wait_until

OWNER = """
import sys, time, threading
from pathlib import Path
from forebay.flink.jvm import launch_jvm

def start():
    jvm = launch_jvm(Path(sys.argv[1]), heap_mb=256)
    print(jvm.process.pid, flush=True)

if sys.argv[2] == "main":
    start()
else:
    threading.Thread(target=start).start()
time.sleep(600)
"""
HALT = """
import sys
from pathlib import Path
from py4j.protocol import Py4JError
from pyflink.java_gateway import get_gateway
from forebay.flink.jvm import start_jvm

start_jvm(Path(sys.argv[1]), heap_mb=256)
try:
    get_gateway().jvm.java.lang.Runtime.getRuntime().halt(3)
except Py4JError:
    print("cut off")
"""


@pytest.mark.flink
def test_call_cut_off_by_the_jvms_end_is_one_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HALT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("cut off\n", "")


@pytest.mark.flink
@pytest.mark.parametrize(("thread", "stopped"), [("main", False), ("main", True), ("other", False)])
def test_jvm_ends_with_its_owner(tmp_path: Path, thread: str, stopped: bool) -> None:
    """Also if it is stopped; except if another thread started it, whose end would end it."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "with space"), thread], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        jvm = psutil.Process(int(owner.stdout.readline()))
        if stopped:
            jvm.send_signal(signal.SIGSTOP)
        owner.kill()
        owner.wait()
        assert not wait_gone({jvm}, 60)


@pytest.mark.flink
def test_files_of_another_containers_jvm_are_kept(tmp_path: Path) -> None:
    """Both share a log folder, and neither can see the other's processes."""
    contained = ["unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if subprocess.run([*contained, "true"], check=False, capture_output=True).returncode:
        pytest.skip("PID namespaces for everybody are needed: unshare --user --map-root-user --pid")
    command = [sys.executable, "-c", OWNER, str(tmp_path), "main"]
    with subprocess.Popen([*contained, *command], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        folders = set(tmp_path.glob(f"{TEMPORARY}*"))
        assert len(folders) == 1
        jvm = launch_jvm(tmp_path, heap_mb=256)
        try:
            assert folders < set(tmp_path.glob(f"{TEMPORARY}*"))
        finally:
            jvm.end()
        assert set(tmp_path.glob(f"{TEMPORARY}*")) == folders
        owner.kill()

    def swept() -> bool:
        launch_jvm(tmp_path, heap_mb=256).end()
        return not set(tmp_path.glob(f"{TEMPORARY}*"))

    wait_until(swept)


@pytest.mark.parametrize("limited", [False, True])
def test_jvm_that_ends_at_once_is_reported_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    limit = 2 << 30 if limited else resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    command = [sys.executable, "-c", "import sys; sys.exit('Could not reserve enough space')"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    jvm = Jvm(subprocess.Popen(command, **pipes), tmp_path / "tmp", tmp_path / "err")
    with pytest.raises(LaunchError) as raised:
        jvm.connect()
    jvm.end()
    text = "the JVM for Flink ended with status 1 before it was ready: Could not reserve enough space"
    more = "; processes may use 2048 MB of addresses here: run `ulimit -v unlimited` first"
    assert str(raised.value) == text + (more if limited else "")


def test_jvm_without_threads_names_the_limit_and_no_optional_module(tmp_path: Path) -> None:
    errors = "WARNING: Unknown module: jdk.compiler\nOutOfMemoryError: unable to create native thread"
    command = [sys.executable, "-c", f"import sys; sys.exit({errors!r})"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    jvm = Jvm(subprocess.Popen(command, **pipes), tmp_path / "tmp", tmp_path / "err")
    with pytest.raises(LaunchError, match=r"ready: OutOfMemoryError: .* thread; allow more threads"):
        jvm.connect()
    jvm.end()


def test_jvm_that_only_closes_its_output_has_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm_module, "END_S", 0.1)
    command = [sys.executable, "-c", "import os, time; os.close(1); time.sleep(600)"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    jvm = Jvm(subprocess.Popen(command, **pipes), tmp_path / "tmp", tmp_path / "err")
    with pytest.raises(LaunchError, match="the JVM for Flink closed its output before it was ready"):
        jvm.connect()
    jvm.end()


@pytest.mark.flink
def test_collected_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    jvm = launch_jvm(tmp_path, heap_mb=512)
    try:
        with closing(jvm.open_gateway()) as gateway:
            runtime = gateway.jvm.java.lang.Runtime.getRuntime()
            buffers = [gateway.jvm.java.lang.StringBuilder(64 << 20) for _ in range(4)]
            assert runtime.totalMemory() > 256 << 20
            for buffer in buffers:
                gateway.detach(buffer)
            runtime.gc()
            assert runtime.totalMemory() <= 96 << 20
    finally:
        jvm.end()


@pytest.mark.parametrize(("heap_mb", "first"), [(1024, "96m"), (64, "64m")])
def test_heap_starts_small_and_within_its_limit(heap_mb: int, first: str) -> None:
    words = java_environment(Path("logs"), heap_mb)["JVM_ARGS"].split()
    assert {f"-Xmx{heap_mb}m", f"-XX:InitialHeapSize={first}"} <= set(words)


@pytest.mark.parametrize(("utf8", "locale"), [("1", "C.UTF-8"), ("0", "C")])
def test_java_names_files_as_this_python_does(utf8: str, locale: str) -> None:
    code = (
        "from pathlib import Path; from forebay.flink.jvm import java_environment; "
        "print(java_environment(Path('logs'), 64)['LC_ALL'])"
    )
    done = subprocess.run(
        [sys.executable, "-X", f"utf8={utf8}", "-W", "ignore", "-c", code],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == locale


def test_memory_pool_setting_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert java_environment(Path("logs"), 256)["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert java_environment(Path("logs"), 256)["MALLOC_ARENA_MAX"] == "8"
