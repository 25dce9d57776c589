"""The process that holds Flink: its reports, its end, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.pipeline import flink_process
from forebay.pipeline.flink_process import FlinkLauncher, FlinkProcess, StdoutResults
from forebay.pipeline.load import parse_spec
from forebay.pipeline.messages import (
    AttemptLost,
    AttemptSpec,
    Checked,
    Failed,
    Preparation,
    end_of,
    end_of_jvm,
)
from forebay.pipeline.plan import Plan
from forebay.pipeline.state_store import RunState
from forebay.ports import free_port
from forebay.processes import alive, wait_gone
from forebay.settings import Settings
from forebay.testing.waiting import wait_until

RESULT = '{"id": "%d", "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "answer": "x"}'


class Ends:
    def __init__(self) -> None:
        self.out, self.out_in = os.pipe()
        self.odd, self.odd_in = os.pipe()
        self.printed = StdoutResults(self.out_in, self.odd_in)

    def run(self, program: str) -> None:
        with self.printed.taken():
            process = subprocess.Popen([sys.executable, "-c", program])
        process.wait(180)

    def close(self) -> None:
        for end in (self.out, self.out_in, self.odd, self.odd_in):
            os.close(end)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_results_are_forwarded_and_counted_apart_from_other_lines(ends: Ends) -> None:
    # No double holds this number.
    wide = RESULT.replace("{", '{"price": 1e400, ', 1) % 2
    lines = [RESULT % 1, "WARNING: x", "", "[1]", '{"usage": 3}', wide]
    ends.run(f"print({chr(10).join(lines)!r})")
    ends.printed.settle()
    assert os.read(ends.out, 10_000).decode().splitlines() == [RESULT % 1, wide]
    assert os.read(ends.odd, 10_000).decode().splitlines() == ["WARNING: x", "[1]", '{"usage": 3}']
    printed = ends.printed
    assert (printed.results, printed.prompt_tokens, printed.completion_tokens) == (2, 6, 4)
    assert not printed.closed


def test_settle_waits_until_all_is_counted(ends: Ends) -> None:
    ends.run(f"for i in range(500): print({RESULT!r} % i, flush=True)")
    ends.printed.settle()
    assert ends.printed.results == 500


def test_closed_reader_is_noticed_and_blocks_nothing(ends: Ends) -> None:
    os.close(ends.out)
    ends.run(f"for i in range(5000): print({RESULT!r} % i)")
    wait_until(lambda: ends.printed.closed)
    ends.printed.settle()
    assert ends.printed.results == 5000
    ends.out = os.dup(0)


@pytest.mark.heavy
def test_standard_output_is_restored() -> None:
    program = """
import subprocess, sys
from forebay.pipeline.flink_process import StdoutResults
printed = StdoutResults()
with printed.taken():
    subprocess.run([sys.executable, "-c", "print('odd')"], check=True)
print("mine", flush=True)
printed.settle()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("mine\n", "odd\n")


@pytest.mark.parametrize("seen", [True, False])
def test_control_characters_are_replaced_only_on_a_terminal(seen: bool) -> None:
    reader, writer = os.openpty() if seen else os.pipe()
    odd, odd_in = os.pipe()
    printed = StdoutResults(writer, odd_in)
    result = RESULT.replace('"x"', '"\x9b31m \u202e"') % 1
    with printed.taken():
        sys.stdout.flush()
        os.write(1, f"odd \x1b[2J \x9b\n{result}\n".encode())
    printed.settle()
    assert os.read(odd, 10_000).decode() == "odd \ufffd[2J \ufffd\n"
    shown = os.read(reader, 10_000).decode()
    assert ("\x9b" not in shown and "\u202e" not in shown) if seen else shown == result + "\n"
    for end in (reader, writer, odd, odd_in):
        os.close(end)


MARK = "FOREBAY_TEST_TREE"
GONE_S = 60.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[FlinkProcess]:
    with FlinkLauncher() as launcher:
        made = launcher.take(plan(tmp_path))
        yield made
        made.kill()


def jvm_of(pid: int) -> psutil.Process:
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = [child for child in psutil.Process(pid).children() if child.name() == "java"]
        return bool(found)

    wait_until(there)
    return found[0]


def plan(folder: Path, **changes: object) -> Plan:
    document = {
        "name": "p",
        "source": {"type": "jsonl", "path": "in.jsonl"},
        "prompt": "x",
        "sink": {"type": "jsonl", "path": "out"},
        **changes,
    }
    (folder / "in.jsonl").touch()
    return Plan(parse_spec(document, base=folder), Settings(folder / "home", Path(sys.executable)))


def order(folder: Path) -> AttemptSpec:
    return AttemptSpec(plan=plan(folder), state=RunState(), job_id="a" * 32)


def heard(process: FlinkProcess) -> object:
    found: list[object] = []

    def something() -> bool:
        report = process.receive(0.5)
        if report is not None:
            found.append(report)
        return bool(found)

    wait_until(something)
    return found[0]


@pytest.mark.flink
def test_killed_jvm_is_reported_immediately_in_one_line(process: FlinkProcess, tmp_path: Path) -> None:
    process.send(order(tmp_path))
    assert heard(process) == Checked()
    jvm_of(process.pid).kill()
    text = "Flink's JVM was killed (by SIGKILL: by hand, or by the system for want of memory)"
    assert heard(process) == AttemptLost(text)
    assert process.log.read_bytes() == b""


@pytest.mark.flink
def test_jvm_killed_during_start_is_reported(process: FlinkProcess, tmp_path: Path) -> None:
    jvm_of(process.pid).kill()
    report = heard(process)
    assert isinstance(report, AttemptLost)
    assert "JVM was killed" in report.cause


@pytest.mark.flink
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed_process_is_reported_and_ends_its_jvm(process: FlinkProcess, number: signal.Signals) -> None:
    jvm = jvm_of(process.pid)
    jvm.suspend()
    os.kill(process.pid, number)
    report = heard(process)
    assert isinstance(report, AttemptLost)
    assert f"was killed (by {number.name}" in report.cause
    assert not wait_gone({jvm}, GONE_S)


def test_process_that_fails_at_its_start_is_reported_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise MemoryError('no room')"]
    monkeypatch.setattr(flink_process, "module_command", lambda *_: command)
    with FlinkLauncher() as launcher:
        failed = launcher.take(plan(tmp_path))
        text = (
            f"the process that holds Flink ended with status 1: MemoryError: no room; its log is {failed.log}"
        )
        assert heard(failed) == AttemptLost(text)
        failed.kill()


@pytest.mark.flink
@pytest.mark.slow
def test_unexpected_error_ends_the_attempt_and_is_logged(process: FlinkProcess) -> None:
    process.send("no order")  # type: ignore[arg-type]
    report = heard(process)
    assert isinstance(report, Failed)
    assert report.message.startswith("unexpected error: AttributeError")
    assert "Traceback" in process.log.read_text()


@pytest.mark.flink
def test_unused_process_ends_with_the_block(tmp_path: Path) -> None:
    with FlinkLauncher() as launcher:
        launcher.start(plan(tmp_path))
        launcher.start(plan(tmp_path))
        (child,) = clients()
        jvm = jvm_of(child.pid)
    assert not wait_gone({child, jvm}, GONE_S)


@pytest.mark.flink
@pytest.mark.slow
def test_started_process_is_taken_only_for_a_plan_with_its_class_path(tmp_path: Path) -> None:
    timed = {"source": {"type": "jsonl", "path": "in.jsonl", "time": "at"}, "event_time": {}}
    with FlinkLauncher() as launcher:
        for started, wanted, same in (({}, {}, True), (timed, timed, True), ({}, timed, False)):
            launcher.start(plan(tmp_path, **started))
            (ahead,) = clients()
            taken = launcher.take(plan(tmp_path, **wanted))
            try:
                assert (taken.pid == ahead.pid) == same
                assert [client.pid for client in clients()] == [taken.pid]
                jvm = jvm_of(taken.pid)
                # It has its name a moment before its arguments.
                wait_until(lambda jvm=jvm: any("GatewayServer" in word for word in jvm.cmdline()))
                planner = "flink-table-planner-" in " ".join(jvm.cmdline())
                assert planner == bool(wanted)
            finally:
                taken.kill()


def test_no_process_starts_with_a_jar_that_is_not_installed(tmp_path: Path) -> None:
    sink = {"type": "kafka", "bootstrap": "127.0.0.1:9", "topic": "out"}
    with FlinkLauncher() as launcher, pytest.raises(SettingError, match="forebay connectors install kafka"):
        launcher.start(plan(tmp_path, sink=sink))
    assert not clients()


@pytest.mark.heavy
def test_folder_that_the_jvm_cannot_use_is_a_setting_error(tmp_path: Path) -> None:
    whole = plan(tmp_path)
    whole.settings.home.mkdir()
    whole.settings.java.touch()
    with FlinkLauncher() as launcher:
        refused = launcher.take(whole)
        try:
            report = heard(refused)
            assert isinstance(report, Failed)
            assert report.error == "SettingError"
            assert report.message.startswith(f"{whole.settings.java} cannot be made a private folder")
            assert refused.log.read_bytes() == b""
        finally:
            refused.kill()


@pytest.mark.flink
def test_process_started_ahead_prepares_before_its_order(tmp_path: Path) -> None:
    whole = order(tmp_path)
    with FlinkLauncher() as launcher:
        preparation = Preparation(plan=whole.plan)
        launcher.prepare(preparation)
        assert not clients(), "nothing was started ahead"
        launcher.start(whole.plan)
        (ahead,) = clients()
        launcher.prepare(preparation)
        taken = launcher.take(whole.plan)
        try:
            assert taken.pid == ahead.pid
            taken.send(whole)
            assert heard(taken) == Checked()
        finally:
            taken.kill()


def clients() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "flink_main" in " ".join(p.cmdline())]


def test_description_of_a_jvms_end(tmp_path: Path) -> None:
    assert end_of_jvm(3, tmp_path) == "ran out of memory"
    assert end_of_jvm(-signal.SIGABRT, tmp_path) == f"crashed: see {tmp_path}/flink-crash-*.log"
    assert end_of_jvm(1, tmp_path) == end_of(1) == "ended with status 1"
    assert end_of(-signal.SIGTERM) == "was killed (by SIGTERM)"


TREE = """
import sys, time
from pathlib import Path
from forebay.engine.launch import ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.pipeline.flink_process import FlinkLauncher
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.settings import Settings

folder = Path(sys.argv[1])
document = {"name": "p", "source": {"type": "generator"}, "prompt": "x", "sink": {"type": "stdout"}}

def fake_replica(port, cores):
    return EngineLaunch((sys.executable, "-m", "forebay.testing.replica", "--port", str(port)))

with FlinkLauncher() as launcher:
    process = launcher.take(Plan(parse_spec(document, base=folder), Settings(folder, Path())))
    with Replicas(ReplicaRegistry(folder / "replicas.json"), fake_replica, model="fake") as replicas:
        replicas.start([()], port_base=int(sys.argv[2]))
        print("up", flush=True)
        time.sleep(600)
"""
PARTS: dict[str, Callable[[str], bool]] = {
    "run": lambda line: "fake_replica" in line,
    "engine supervisor": lambda line: "engine.launch.supervisor" in line,
    "engine": lambda line: "testing.replica" in line and "supervisor" not in line,
    "flink": lambda line: "flink_main" in line,
    "jvm": lambda line: "py4j.GatewayServer" in line,
}


def tree(mark: str) -> dict[str, psutil.Process]:
    """The processes of a run by role."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if alive(process) and process.environ().get(MARK) == mark:
                line = " ".join(process.cmdline())
                found[next(name for name, is_it in PARTS.items() if is_it(line))] = process
    return found


@pytest.mark.flink
@settings(
    # Each starts a JVM: four by default, and as many as `make test-faults` asks for.
    max_examples=max(1, settings.default.max_examples // 25),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.permutations(sorted(PARTS)), st.sets(st.sampled_from(["flink", "jvm"])), st.data())
def test_nothing_outlives_a_run_killed_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, killed: list[str], stopped: set[str], data: st.DataObject
) -> None:
    """Some processes, including the run itself, are killed; others are suspended."""
    killed = killed[: data.draw(st.integers(killed.index("run") + 1, len(killed)))]
    mark, folder = uuid.uuid4().hex, tmp_path_factory.mktemp("tree")
    command = [sys.executable, "-c", TREE, str(folder), str(free_port())]
    environment = {**os.environ, MARK: mark}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        wait_until(lambda: set(tree(mark)) == set(PARTS), describe=lambda: str(sorted(tree(mark))))
        processes = tree(mark)
        for name in sorted(stopped):
            processes[name].suspend()
        for name in killed:
            with suppress(psutil.NoSuchProcess):
                processes[name].kill()
        left = wait_gone(set(processes.values()), GONE_S)
        assert not left, [name for name, process in processes.items() if process in left]
