from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from hypothesis import settings

from forebay.errors import SettingError

if TYPE_CHECKING:
    from tests.harness.pipelines import Pipelines

# A deadline per example would be an assertion about the wall clock of a busy machine.
settings.register_profile("forebay", deadline=None, print_blob=True, max_examples=50)
# For `make check`.
settings.register_profile("check", deadline=None, print_blob=True, max_examples=5)
# For `make test`.
settings.register_profile("test", deadline=None, print_blob=True, max_examples=25)
# For `make test-faults`.
settings.register_profile("faults", deadline=None, print_blob=True, max_examples=2000)
# For `make test-attacks`: with forty readers, more than 100,000 inputs.
settings.register_profile("attacks", deadline=None, print_blob=True, max_examples=2600)
settings.load_profile("forebay")


MAX_OF_A_NAME = 60
"""Maximum characters of a parameter in a test's name: some are inputs of megabytes."""


def pytest_make_parametrize_id(val: object) -> str | None:
    text = ascii(val) if isinstance(val, str | bytes) and len(val) > MAX_OF_A_NAME else None
    return text and f"{text[:MAX_OF_A_NAME]}...{len(text)}"


def pytest_configure() -> None:
    # A shell's background job ignores Ctrl-C, and so would the commands that tests start and stop.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Terminals have their usual width and colors, and servers on this machine are called directly.
    for name in ("COLUMNS", "FORCE_COLOR"):
        os.environ.pop(name, None)
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))
    # Their JVMs end before the second compiler pays off: without it they take half the processor time. A
    # twentieth of the rest went into the verification of released classes.
    options = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    os.environ.setdefault("JDK_JAVA_OPTIONS", options)
    # Otherwise Typer inspects the parameters of all commands for each command line.
    typer.main.get_params_from_function = cache(typer.main.get_params_from_function)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off the modules of all tests: collecting tests took a seventh longer, and
    each later garbage collection, such as before each load, a quarter of a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that start a broker, a control plane or a Ray cluster, and distribute all among workers.

    One worker each gets those of a local engine, those of the session's broker, and those of a control plane
    or a Ray cluster; those of a JVM are distributed one by one, all others by file. Quick ones run last, and
    not all slow ones run at once: two cores cannot bear that.
    """
    for item in items:
        if "kafka_home" in getattr(item, "fixturenames", ()):
            item.add_marker("kafka")
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker("kubernetes")
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("long")
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if _has(item, "vllm"):
            item.add_marker(pytest.mark.xdist_group("vllm"))
        elif not _has(item, "xdist_group") and "node" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("kafka"))
        elif _has(item, "kubernetes"):
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
        elif "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif not _has(item, "flink", "kafka", "xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    for turn, mark in enumerate(("vllm", "kafka", "flink")):
        if _has(item, mark):
            return turn
    return 3


def _has(item: pytest.Item, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


@pytest.fixture(scope="session")
def flink_logs(tmp_path_factory: pytest.TempPathFactory, connector: Path | None) -> Path:
    """The log folder of the session's running JVM, with Kafka's connector if that is installed."""
    from forebay.flink.jvm import start_jvm
    from forebay.settings import load_settings

    logs = tmp_path_factory.mktemp("flink-logs")
    jars = [] if connector is None else [connector]
    start_jvm(logs, heap_mb=768, jars=jars, archive_dir=load_settings().java)
    return logs


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forebay's home for commands that leave nothing to inspect there."""
    from tests.harness.homes import new_home

    return new_home(tmp_path_factory.mktemp("forebay") / "home")


@pytest.fixture
def pipelines(tmp_path: Path, flink_logs: Path, connector: Path | None) -> Pipelines:
    from tests.harness.pipelines import Pipelines

    return Pipelines(tmp_path, connector)


@pytest.fixture(scope="module")
def shared_pipelines(
    tmp_path_factory: pytest.TempPathFactory, flink_logs: Path, connector: Path | None
) -> Pipelines:
    from tests.harness.pipelines import Pipelines

    return Pipelines(tmp_path_factory.mktemp("pipelines"), connector)


TOOL_CALLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="session")
def local_engine() -> Iterator[Any]:
    """One vLLM with the default model and room for 512 tokens, shared by all tests that only call it."""
    from forebay.engine.launch import EngineOptions, Silent, ensure_engine, local_replicas
    from forebay.settings import load_settings

    settings = load_settings()
    ensure_engine(settings, Silent())
    options = EngineOptions(kv_cache_gib=0.5, max_model_len=512, extra=("--seed", "3", *TOOL_CALLS))
    with local_replicas(1, options, settings=settings) as replicas:
        processes = replicas.replicas[0].processes()
        yield replicas
    assert not any(process.is_running() and process.status() != "zombie" for process in processes)


NEAR = Path(__file__).parents[1].parent / "shared" / "kafka"


@pytest.fixture(scope="session")
def kafka_home() -> Path:
    home = Path(os.environ.get("FOREBAY_KAFKA_HOME", NEAR))
    if not home.is_dir():
        pytest.skip(f"no Kafka distribution: FOREBAY_KAFKA_HOME is not set and {home} is missing")
    return home


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from benchmarks.kubernetes.plane import MISSING, control_plane_in, kubernetes_home

    pytest.importorskip("lightkube", reason="lightkube is missing: pip install 'forebay[kubernetes]'")
    home = kubernetes_home()
    if home is None:
        pytest.skip(MISSING)
    with control_plane_in(tmp_path_factory.mktemp("kubernetes"), home) as plane:
        yield plane


@pytest.fixture(scope="session")
def connector() -> Path | None:
    """Kafka's connector, installed where `forebay connectors install kafka` does."""
    from forebay.connectors.jars import KAFKA, install_jar
    from forebay.settings import load_settings

    settings = load_settings()
    origin = settings.connectors_from or str(NEAR / "connector")
    if settings.connectors_from is None and not Path(origin).is_dir():
        return None
    return install_jar(KAFKA, settings.connectors, origin)


@pytest.fixture(scope="session")
def kafka_jar(connector: Path | None) -> Path:
    if connector is None:
        pytest.skip(f"no connector: FOREBAY_CONNECTORS_FROM is not set and {NEAR / 'connector'} is missing")
    from forebay.flink.jvm import class_archive
    from forebay.settings import load_settings

    settings = load_settings()
    archive = class_archive(settings.java, jars=[connector])
    # Once it is made, runs start faster.
    threading.Thread(target=archive.make, args=(settings.child_environment(),), daemon=True).start()
    return connector


@pytest.fixture(scope="session")
def node(kafka_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from forebay.testing.kafka import local_kafka

    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with local_kafka(kafka_home, tmp_path_factory.mktemp("kafka"), settings) as node:
        yield node


@pytest.fixture
def topic(node: Any) -> Callable[..., str]:
    from benchmarks.topic_client import make_topic

    def make(partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        make_topic(node.bootstrap, name, partitions, **config)
        return name

    return make


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a package on this process's path: its code, and its entry points of a group."""

    def put(group: str, package: str, code: str, version: str = "1.0", **entries: str) -> None:
        site = tmp_path / package
        about = site / f"{package}-{version}.dist-info"
        about.mkdir(parents=True)
        (site / f"{package}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = [f"{name} = {package}:{attribute}" for name, attribute in entries.items()]
        (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return put


@pytest.fixture(scope="session")
def example_extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package in `examples/extension` was installed."""
    # From a copy: building leaves folders next to the sources.
    copy, folder = tmp_path_factory.mktemp("source") / "extension", tmp_path_factory.mktemp("site")
    shutil.copytree(Path(__file__).parents[1] / "examples" / "extension", copy)
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder), str(copy)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An S3 server shared by all tests, started by `benchmarks.object_store`."""
    from benchmarks.object_store import object_store

    with object_store(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def store(store_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from benchmarks.object_store import BUCKET

    from forebay.clients.s3.location import S3Path

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in store_server.variables.items():
        monkeypatch.setenv(name, value)
    yield S3Path(BUCKET, f"t-{uuid.uuid4().hex[:8]}/p")
    store_server.link.restore()


@pytest.fixture(scope="session")
def s3_plugin() -> Path:
    """Flink's file system for S3, installed where `forebay connectors install s3` does."""
    from forebay.connectors.jars import S3, install_jar
    from forebay.settings import load_settings

    settings = load_settings()
    origins = [origin for origin in (settings.connectors_from, str(NEAR.parent / "s3")) if origin]
    for origin in origins:
        with suppress(SettingError):
            return install_jar(S3, settings.connectors, origin)
    pytest.skip(f"no file system for S3: it is not in {' or '.join(origins)}")
