"""The JVM of a Flink client: one per process.

PyFlink's own gateway serves anyone who connects. This one requires a token, and stops listening once
connected.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyflink
from py4j.java_gateway import GatewayParameters
from py4j.protocol import Py4JError
from pyflink import java_gateway
from pyflink import pyflink_gateway_server as gateway
from pyflink.util.exceptions import install_exception_handler, install_py4j_hooks

from forebay.errors import LaunchError
from forebay.files import locked_folder, private_folder, remove_unlocked
from forebay.flink.class_archive import ClassArchive, with_planner, with_rpc, without_planner
from forebay.flink.java import java_home
from forebay.flink.sealed_gateway import SealedGateway
from forebay.processes import own_name, parent_death_signal

HEAP_MB = 1024
START_TIMEOUT_S = 120.0
END_S = 10.0
GATEWAY_CLASS = "org.apache.flink.api.python.shaded.py4j.GatewayServer"
GATEWAY_ARGUMENTS = ("--enable-auth", "--die-on-broken-pipe", "0")
PORT_VARIABLE = "PYFLINK_GATEWAY_PORT"
PLUGINS_VARIABLE = "FLINK_PLUGINS_DIR"
CHUNK_BYTES = 1 << 16
TEMPORARY = "tmp-"
MODULE_WARNING = "WARNING: Unknown module"
NO_THREAD = "unable to create native thread"
MORE_THREADS = "allow more threads (`ulimit -u`, or `pids.max` of the container)"

TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""Sends Java's warnings to standard error, because standard output is for results."""
QUIET = ("-XX:-UsePerfData", "-XX:+EnableDynamicAgentLoading", "-Xshare:auto", *TO_STDERR)
FIRST_HEAP_MB = 96
"""The heap never shrinks below it, and garbage fills it before a full collection."""
SMALL = (
    "-XX:+UseSerialGC",
    # All of it stays in memory.
    "-Xmn16m",
    "-XX:MetaspaceSize=96m",
    # Return memory to the system after `collect_garbage`,
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:-ShrinkHeapInSteps",
    # and the compilers' native memory each half minute.
    "-XX:TrimNativeHeapInterval=30000",
    # Map the class archive at its own address; relocated, all of it would be loaded and written to.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
    # Flink's two actor systems wake at each tick, by default every 10 ms; its timeouts are seconds.
    "-Dpekko.scheduler.tick-duration=100ms",
)
"""For a machine that also runs an engine. With the first compiler alone, records passed at 70 % of the speed.
"""
ARENAS = {"MALLOC_ARENA_MAX": "2"}
ONE_LOG = "-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.BasicContextSelector"
NATIVE_ACCESS = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")

_lock = threading.Lock()


def import_path() -> str:
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    site = Path(sysconfig.get_path("purelib"))
    paths = [str(site)]
    for entry in sys.path:
        path = Path(entry).absolute()
        if not path.is_dir() or path.resolve() in library or path.name == "lib-dynload":
            continue
        if str(path) not in paths:
            paths.append(str(path))
    return os.pathsep.join(paths)


def java_environment(log_dir: Path, heap_mb: int, jars: Sequence[Path] = ()) -> dict[str, str]:
    heap = (f"-Xmx{heap_mb}m", f"-XX:InitialHeapSize={min(FIRST_HEAP_MB, heap_mb)}m")
    absolute = [str(jar.resolve()) for jar in jars]
    return {
        **ARENAS,
        **os.environ,
        # Java must name files as this Python does, also if the locale is C.
        **({"LC_ALL": "C.UTF-8"} if sys.flags.utf8_mode else {}),
        "JAVA_HOME": str(java_home()),
        "FLINK_LOG_DIR": str(log_dir),
        "JVM_ARGS": " ".join((*heap, *SMALL, *QUIET, *NATIVE_ACCESS)),
        "PYTHONPATH": import_path(),
        "HADOOP_CLASSPATH": os.pathsep.join(
            filter(None, (os.environ.get("HADOOP_CLASSPATH"), *_reporters(), *absolute))
        ),
    }


def _reporters() -> list[str]:
    """An embedded cluster loads no plugins, and PyFlink accepts jars only by HADOOP_CLASSPATH."""
    return sorted(map(str, Path(pyflink.__path__[0], "plugins").glob("metrics-*/*.jar")))


class Jvm:
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
        self._connected = False
        self._answer: Future[tuple[int, str]] = Future()
        self._stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdout is not None
        assert stderr is not None
        read_answer = partial(_read_answer, cast(BufferedReader, stdout), self._answer)
        keep_empty = partial(_keep_empty, stderr, errors)
        self._pumps = tuple(threading.Thread(target=pump, daemon=True) for pump in (read_answer, keep_empty))
        for pump in self._pumps:
            pump.start()

    def connect(self) -> None:
        """Make it this process's JVM. Blocks until it answers. Raises `LaunchError` with its last lines."""
        parameters = self._parameters()
        with java_gateway._lock:
            java_gateway.logger.setLevel("WARNING")
            # No server for calls from Java into Python, unlike PyFlink's: there are none.
            java_gateway._gateway = SealedGateway(parameters)
            java_gateway.import_flink_view(java_gateway._gateway)
            install_exception_handler()
            install_py4j_hooks()
            _mute_py4j()
            self._connected = True

    def open_gateway(self) -> SealedGateway:
        return SealedGateway(self._parameters(), 3)

    def _parameters(self) -> GatewayParameters:
        try:
            port, token = self._answer.result(START_TIMEOUT_S)
        except (FutureTimeout, EOFError) as error:
            how = f"did not start within {START_TIMEOUT_S:.0f} s"
            if isinstance(error, EOFError):
                self.await_end(END_S)
                status = self.process.poll()
                ended = "closed its output" if status is None else f"ended with status {status}"
                how = f"{ended} before it was ready"
            self.process.kill()
            self.process.wait()
            self._pumps[1].join(END_S)
            text = self._errors.read_text(errors="replace") if self._errors.is_file() else ""
            lines = [line for line in text.splitlines() if not line.startswith(MODULE_WARNING)]
            detail = "\n".join(lines)[-2000:].strip()
            fix = _address_limit() or (f"; {MORE_THREADS}" if NO_THREAD in detail else "")
            raise LaunchError(f"the JVM for Flink {how}: {detail}{fix}") from None
        return GatewayParameters(port=port, auth_token=token, auto_convert=True)

    def await_end(self, timeout_s: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)

    def end(self) -> None:
        """End it and pass on the rest of its output. Blocks for some seconds at most. Idempotent."""
        if self._connected:
            # Do not release Python's references to Java objects one by one.
            with suppress(Py4JError, OSError):
                java_gateway.get_gateway().shutdown()
        with suppress(OSError):
            if self._stdin is not None:
                self._stdin.close()
        self.await_end(END_S)
        self.process.kill()
        self.process.wait()
        for pump in self._pumps:
            pump.join(END_S)
        shutil.rmtree(self._folder, ignore_errors=True)


def launch_jvm(
    log_dir: Path,
    *,
    heap_mb: int,
    jars: Sequence[Path] = (),
    planner: bool = False,
    archive_dir: Path | None = None,
    suffix: str = "",
    plugins: Path | None = None,
) -> Jvm:
    """Start a JVM with `jars` on its class path; returns at once.

    It has the table planner only with `jars` or `planner` (event time). `suffix` names an additional JVM,
    which ends with the thread that starts it. Logs and temporary files are under `log_dir`. The JVM ends with
    this process, even if that is killed: at the end of its standard input and, on Linux, by a kernel signal
    if the main thread starts it. Its status is 3 when out of memory. Raises `SettingError` if `log_dir`
    cannot be made private, and as `java_home`.
    """
    log_dir = private_folder(log_dir.absolute())
    remove_unlocked(log_dir, TEMPORARY)
    name = f"{own_name()}-{suffix}" if suffix else own_name()
    errors = log_dir / f"flink-jvm-{name}.err"
    folder, lock = locked_folder(log_dir, TEMPORARY)
    # The JVM inherits the lock, which protects the folder while the JVM lives.
    with lock:
        env = java_environment(log_dir, heap_mb, jars)
        env["FLINK_IDENT_STRING"] = f"forebay-{name}"
        if plugins is not None:
            env[PLUGINS_VARIABLE] = str(plugins.absolute())
            env["JVM_ARGS"] += f" {ONE_LOG}"
        archive, classpath = None, _classpath(env)
        if archive_dir is not None:
            archive = _archive(archive_dir, env, classpath, planner or bool(jars))
            classpath = archive.classpath
        options = (f"-Djava.io.tmpdir={folder}", *(() if archive is None else archive.options()))
        process = subprocess.Popen(
            _command(_java(env), env, classpath, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            # Python inside the JVM always looks for modules in its working directory.
            cwd=private_folder(folder / "empty"),
            preexec_fn=_before_java(bool(suffix) or threading.current_thread() is threading.main_thread()),  # noqa: PLW1509
            pass_fds=(lock.fileno(),),
        )
    return Jvm(process, folder, errors, archive)


def class_archive(folder: Path, *, planner: bool = False, jars: Sequence[Path] = ()) -> ClassArchive:
    """The archive that JVMs with these arguments map.

    Raises `SettingError` as `java_home`, or if others may write to `folder`.
    """
    env = java_environment(folder, HEAP_MB, jars)
    return _archive(folder, env, _classpath(env), planner or bool(jars))


def _archive(folder: Path, env: Mapping[str, str], classpath: tuple[str, ...], planner: bool) -> ClassArchive:
    folder = folder.absolute()
    classpath = with_planner(classpath, folder) if planner else without_planner(classpath)
    return ClassArchive(folder, _java(env), with_rpc(classpath, folder))


def _java(env: Mapping[str, str]) -> Path:
    return Path(env["JAVA_HOME"], "bin", "java")


def _classpath(env: dict[str, str]) -> tuple[str, ...]:
    gateway.prepare_environment_variables(env)
    found = (gateway.construct_flink_classpath(env), gateway.construct_hadoop_classpath(env))
    # An empty entry means the working directory; load no class from there.
    return tuple(filter(None, os.pathsep.join(found).split(os.pathsep)))


def _command(java: Path, env: dict[str, str], classpath: Sequence[str], options: Sequence[str]) -> list[str]:
    return [
        str(java),
        *options,
        *env["JVM_ARGS"].split(),
        # A JVM that is out of memory works only in part.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={env['FLINK_LOG_DIR']}/flink-crash-{env['FLINK_IDENT_STRING']}.log",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:+DisplayVMOutputToStderr",
        # Later log lines would reopen the file, and empty it.
        "-Dlog4j.shutdownHookEnabled=false",
        "--add-opens=jdk.proxy2/jdk.proxy2=ALL-UNNAMED",
        *gateway.get_jvm_opts(env),
        *gateway.construct_log_settings(env),
        "-cp",
        os.pathsep.join(classpath),
        GATEWAY_CLASS,
        *GATEWAY_ARGUMENTS,
    ]


def _before_java(dies_with_us: bool) -> Callable[[], None]:
    die_with_us = parent_death_signal(signal.SIGKILL) if dies_with_us else lambda: None

    def before() -> None:
        # Ctrl-C is for the command, which ends Java after it has cancelled the job.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_us()

    return before


def start_jvm(
    log_dir: Path,
    *,
    heap_mb: int,
    jars: Sequence[Path] = (),
    plugins: Path | None = None,
    archive_dir: Path | None = None,
) -> None:
    """Launch a JVM with the table planner for this process, unless it has one. Raises as `connect`."""
    with _lock:
        if java_gateway._gateway is not None or PORT_VARIABLE in os.environ:
            java_gateway.get_gateway()
            return
        arguments: dict[str, Any] = {"heap_mb": heap_mb, "jars": jars, "plugins": plugins}
        jvm = launch_jvm(log_dir, **arguments, planner=True, archive_dir=archive_dir)
        # A job's last output passes through this process.
        atexit.register(jvm.end)
        jvm.connect()


def collect_garbage() -> None:
    with suppress(Py4JError, OSError):
        java_gateway.get_gateway().jvm.System.gc()


def jvm_process() -> tuple[int, float]:
    from forebay.processes import birth_s  # takes a fifth of a second, and a JVM is to start

    pid = int(java_gateway.get_gateway().jvm.java.lang.ProcessHandle.current().pid())
    return pid, birth_s(pid) or 0.0


def _mute_py4j() -> None:
    logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "Exception while sending command" not in str(record.msg))


def _address_limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; processes may use {limit >> 20} MB of addresses here: run `ulimit -v unlimited` first"


def _read_answer(stdout: BufferedReader, answer: Future[tuple[int, str]]) -> None:
    with open(1, "wb", closefd=False) as out:
        for line in stdout:
            if line.strip().isdigit():
                answer.set_result((int(line), stdout.readline().decode().strip()))
                break
            _pass_on(line, out)
        else:
            answer.set_exception(EOFError())
        while data := stdout.read1(CHUNK_BYTES):
            _pass_on(data, out)


def _pass_on(data: bytes, out: BinaryIO) -> None:
    # If nobody reads our output any more, the JVM must not block.
    with suppress(OSError):
        out.write(data)
        out.flush()


def _keep_empty(stderr: IO[bytes], errors: Path, limit: int = 16 << 20) -> None:
    """A full pipe would stop the JVM."""
    with ExitStack() as opened:
        try:
            out = opened.enter_context(errors.open("wb", buffering=0))
        except OSError:
            limit = 0
        while data := os.read(stderr.fileno(), CHUNK_BYTES):
            if limit > 0:
                try:
                    out.write(data[:limit])
                except OSError:
                    limit = 0
                limit -= len(data)
