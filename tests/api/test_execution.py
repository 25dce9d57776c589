"""Ends of a program's job: failure, Ctrl-C, and a cluster that outlives the program."""

from __future__ import annotations

import logging
import signal
import subprocess
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import FunctionFailed, PipelineFailed
from forebay.flink.job import end_job
from forebay.flink.rest import FlinkRest
from forebay.testing import local_cluster, wait_until

from .conftest import Start

pytestmark = pytest.mark.flink
TIMEOUT_S = 120


class Odd:
    """Not a JSON value."""


@pytest.mark.long
@pytest.mark.usefixtures("flink_logs")
def test_a_defect_in_what_is_written_ends_the_job_at_the_second_failure(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    env = fb.environment()
    odd = env.from_collection(["a", "b"]).map(lambda text: Odd())
    fb.write_jsonl(odd, tmp_path / "out")
    with pytest.raises(FunctionFailed) as raised:
        env.execute("odd")
    said = str(raised.value)
    assert said.startswith(
        f"the Flink job failed: write_jsonl '{tmp_path}/out': making JSON failed for the Odd"
    )
    assert (
        "Type is not JSON serializable: Odd; the job was cancelled, because it failed twice in a row" in said
    )
    assert "Flink's log is in " in said
    assert "\n" not in said
    (restart,) = [record for record in caplog.records if record.name == "forebay"]
    assert restart.levelno == logging.WARNING
    assert restart.getMessage().startswith("Flink restarts the job: FunctionFailed: write_jsonl")


@pytest.mark.usefixtures("flink_logs")
def test_another_failure_is_reported_in_one_line() -> None:
    def refuse(text: str) -> str:
        raise ValueError(f"no {text}")

    env = fb.environment(options={"restart-strategy.type": "none"}, log_every_s=None)
    env.from_collection(["tea"]).map(refuse).print()
    with pytest.raises(PipelineFailed, match=r"^the Flink job failed.*: ValueError: no tea; Flink's log"):
        env.execute("tea")


@pytest.mark.usefixtures("flink_logs")
def test_a_job_without_operators_is_not_taken() -> None:
    with pytest.raises(PipelineFailed, match=r"Flink refused the job: .*No operators"):
        fb.environment().execute("nothing")


PROGRAM = """
import logging, sys
import forebay as fb
from forebay.testing import Fixed, ScriptedEngineFactory

logging.basicConfig(level=logging.INFO)
cluster = sys.argv[1] if len(sys.argv) > 1 else None
env = fb.environment(checkpoints="state", every_s=0.3, cluster=cluster)
ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01)), prompt="{{ text }}")
fb.write_jsonl(fb.infer(fb.read_text(env, sys.path[0] + "/in", follow=True), ask).results, "out")
env.execute("lines")
"""


def interrupted(process: subprocess.Popen[bytes], said: Path) -> str:
    """Interrupt a program once its job has a checkpoint; returns its output."""
    done = f"{said.parent}/state"
    wait_until(lambda: "the job runs" in said.read_text(), timeout_s=TIMEOUT_S)
    wait_until(lambda: any(Path(done).glob("*/chk-*/_metadata")), timeout_s=TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == -signal.SIGINT
    return said.read_text()


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_with_one_message(start: Start, tmp_path: Path) -> None:
    said = interrupted(start("said"), tmp_path / "said")
    assert said.count("Traceback") == 1
    assert "while sending command" not in said
    assert said.endswith("KeyboardInterrupt\n")
    assert "is cancelled; its checkpoints stay" in said
    assert any((tmp_path / "state").glob("*/chk-*/_metadata"))


@pytest.mark.long
def test_a_job_on_a_cluster_is_not_started_twice_and_ctrl_c_cancels_it(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with local_cluster(tmp_path / "cluster") as address:
        rest = FlinkRest(f"http://{address}")
        state.mkdir()
        first = start("first", address)
        wait_until(lambda: any(state.glob("*/chk-*/_metadata")), timeout_s=TIMEOUT_S)
        first.kill()
        first.wait()
        (job,) = rest.json("/jobs")["jobs"]
        assert job["status"] == "RUNNING"
        assert start("second", address).wait(TIMEOUT_S) == 1
        assert (
            f"job {job['id']}, which has its checkpoints in state, still runs"
            in (tmp_path / "second").read_text()
        )
        assert end_job(rest, job["id"], TIMEOUT_S) == "CANCELED"
        said = interrupted(start("third", address), tmp_path / "third")
        assert "the job resumes from checkpoint state/" in said
        assert f"at {address} is cancelled; its checkpoints stay" in said
        assert {each["status"] for each in rest.json("/jobs")["jobs"]} == {"CANCELED"}
        assert len(rest.json("/jobs")["jobs"]) == 2
