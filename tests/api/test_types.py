from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROGRAM = """
from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from pyflink.common import Types

import forebay as fb
from forebay.errors import SettingError
from forebay.testing import Machine, wait_until


class Ticket(BaseModel):
    team: Literal["billing", "network"]


class Count(fb.Program[int]):
    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: fb.Event, now: fb.Moment) -> fb.Step[int]:
        return fb.Step(state + 1, fb.Ask((fb.Message("user", str(event.fields["text"])),)))

    def on_answer(self, state: int, tag: str, answer: fb.Answer, now: fb.Moment) -> fb.Step[int]:
        return fb.Step(state, outputs=(fb.Output(answer.value),), timers={"idle": fb.Timer(60_000)})


def line(result: fb.Result) -> str:
    return f"{result.key}: {result.answer.team} {result.usage.completion_tokens}"


def main() -> None:
    env = fb.environment(checkpoints="state", every_s=10)
    fleet = fb.Fleet("http://a:8000", "http://b:8000", routing="session_affinity")
    ask = fb.Inference(
        fleet, prompt="{{ text }}", schema=Ticket, sampling=fb.Sampling(max_tokens=8), retry=fb.RetryPolicy()
    )
    tickets = fb.read_jsonl(env, "tickets.jsonl", time="at", out_of_orderness_s=3)
    answered = fb.infer(tickets, ask, key="{{ user }}", id=lambda event: str(event.fields["id"]))
    answered.results.map(line, Types.STRING()).print()
    answered.results.map(lambda result: result.usage.prompt_tokens).print()
    answered.dead_letters.filter(lambda letter: letter.cause == "invalid_answer").print()
    fb.write_jsonl(answered.results, "out")
    fb.write_kafka(answered.dead_letters, "broker:9092", "dead", name="mine")
    counted = fb.infer_stateful(tickets, Count(), ask, key="{{ user }}")
    plain = fb.Inference("http://a:8000")
    hourly = fb.summaries(tickets, plain, key="{{ user }}", window="sliding", size_s=60)
    talk = fb.sessions(tickets, plain, key="{{ user }}", idle_s=None)
    with answered.results.execute_and_collect() as results:
        print([result.answer.team for result in results])
    print([letter.cause for letter in answered.dead_letters.execute_and_collect(limit=3)])
    for found in (counted, hourly, talk):
        fb.write_jsonl(found.results, "more")
    env.execute("tickets")


try:
    Machine(Count()).event("ann", 1, text="tea")
    wait_until(lambda: True)
    main()
except (SettingError, fb.ForebayError) as error:
    print(error)
"""
WRONG = """
import forebay as fb

ask = fb.Inference("http://a:8000", promt="{{ text }}")
fb.summaries(None, ask, key="{{ user }}", window="slidin")
fb.infer(None, ask).results.map(lambda result: result.anwser)
fb.no_such_name
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's cache of Forebay and its libraries, shared by the programs."""
    return tmp_path_factory.mktemp("mypy")


def mypy(folder: Path, program: str, cache: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    (folder / "pyproject.toml").write_text(
        "[tool.mypy]\nstrict = true\n"
        "[[tool.mypy.overrides]]\nmodule = 'pyflink.*'\nignore_missing_imports = true\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_program_passes_mypy_strict(tmp_path: Path, cache: Path) -> None:
    done = mypy(tmp_path, PROGRAM, cache)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_mistakes_are_found(tmp_path: Path, cache: Path) -> None:
    text = mypy(tmp_path, WRONG, cache).stdout
    for line, words in ((4, "promt"), (5, "window"), (6, '"anwser"'), (7, "no_such_name")):
        assert any(each.startswith(f"program.py:{line}:") and words in each for each in text.splitlines()), (
            text
        )


def test_program_passes_pyright_strict(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # basedpyright comes whole from PyPI, and in this mode has pyright's rules. It would report that
    # PyFlink has no stubs.
    (tmp_path / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "reportMissingTypeStubs": false}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
