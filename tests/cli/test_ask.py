"""`forebay ask` as a command, on a scripted replica."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import refusal

from forebay.cli.ask import ChangesOnly
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def replica() -> Iterator[ReplicaThread]:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as running:
        yield running


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", "ask", *words],
        env={**os.environ, "FOREBAY_HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def asked(folder: Path, data: bytes, *words: str) -> tuple[int, str, str]:
    running = start(folder, *words)
    out, text = running.communicate(data, timeout=300)
    return running.returncode, out.decode(), text.decode()


def test_answers_in_order_and_dead_letters_with_their_cause(tmp_path: Path, replica: ReplicaThread) -> None:
    data = b'{"text": "a"}\n{"txt": "b"}\nnope\n{"text": "c"}\n'
    status, out, text = asked(tmp_path, data, "Say {{ text }}", "--engine", replica.url)
    assert (status, len(out.splitlines())) == (1, 2)
    one, two = text.splitlines()
    assert one == "line 2: template_failed: prompt: field 'text' is missing; the event has txt"
    assert two.startswith("line 3: malformed_record: not JSON: ")


def test_an_answer_that_was_cut_is_printed_and_marked_so(tmp_path: Path, replica: ReplicaThread) -> None:
    data = b"((fault:length))\nwhole\n"
    status, out, text = asked(tmp_path, data, "Say {{ text }}", "--engine", replica.url)
    assert (status, len(out.splitlines())) == (0, 2)
    assert (
        text == "line 1: the answer was truncated at max_tokens; raise it with --set sampling.max_tokens=N\n"
    )


def test_lines_of_json_hold_the_record_and_the_answer(tmp_path: Path, replica: ReplicaThread) -> None:
    words = ("In a word: {{ text }}", "--engine", replica.url, "--choices", "red,blue", "--json")
    status, out, text = asked(tmp_path, b"sky\nblood\n", *words)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, text) == (0, "")
    assert [(line["position"], line["fields"]) for line in lines] == [
        ("line 1", {"text": "sky"}),
        ("line 2", {"text": "blood"}),
    ]
    assert {line["answer"] for line in lines} <= {"red", "blue"}
    assert {line["replica"] for line in lines} == {replica.url}


def test_every_character_is_printed_whatever_the_locale(tmp_path: Path, replica: ReplicaThread) -> None:
    text = "é … 😀"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = subprocess.run(
        [sys.executable, "-m", "forebay", "ask", "Say {{ text }}", "--engine", replica.url, "--json"],
        env={**os.environ, "FOREBAY_HOME": str(tmp_path), **locale},
        input=json.dumps({"text": text}).encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["fields"] == {"text": text}


@pytest.mark.parametrize(
    ("redirection", "names"),
    [("<&-", "input was"), (">&-", "output was"), ("<&- >&-", "input and output were")],
)
def test_a_closed_stream_is_no_success(
    redirection: str, names: str, tmp_path: Path, replica: ReplicaThread
) -> None:
    command = f'exec "$@" {redirection}'
    ask = [sys.executable, "-m", "forebay", "ask", "Say {{ text }}", "--engine", replica.url]
    found = subprocess.run(
        ["/bin/sh", "-c", command, "sh", *ask],
        env={**os.environ, "FOREBAY_HOME": str(tmp_path)},
        input=b"a\n",
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, b"")
    assert f"standard {names} closed at the start" in found.stderr.decode()


def test_a_schema_and_a_file_next_to_the_text(tmp_path: Path, replica: ReplicaThread) -> None:
    schema = tmp_path / "schema.json"
    properties = {"word": {"enum": ["a", "b"]}}
    schema.write_text(json.dumps({"type": "object", "properties": properties, "required": ["word"]}))
    file = tmp_path / "out.jsonl"
    words = ("{{ text }}", "--engine", replica.url, "--schema", str(schema), "--json", str(file))
    status, out, _ = asked(tmp_path, b"x\n", *words)
    assert status == 0
    assert json.loads(out)["word"] in {"a", "b"}
    assert json.loads(file.read_text())["answer"] == json.loads(out)


def test_closed_output_ends_the_command_quietly(tmp_path: Path, replica: ReplicaThread) -> None:
    running = start(tmp_path, "{{ text }}", "--engine", replica.url, "--capacity", "4")
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdin.write(b"x\n" * 2000)
    running.stdin.flush()
    assert running.stdout.readline()
    running.stdout.close()
    assert running.wait(300) == 141
    assert running.stderr.read() == b""
    running.stdin.close()


def test_ctrl_c_ends_it_while_it_waits_for_a_line(tmp_path: Path, replica: ReplicaThread) -> None:
    running = start(tmp_path, "{{ text }}", "--engine", replica.url)
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdin.write(b"one line\n")
    running.stdin.flush()
    assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    wait_until(lambda: running.poll() is not None)
    assert running.returncode == 130
    assert b"Traceback" not in running.stderr.read()
    running.stdin.close()


def test_the_reason_of_a_wait_is_printed_once() -> None:
    printed: list[str] = []
    note = ChangesOnly(printed.append)
    for text in ("refused", "refused", "not found", "not found", "refused"):
        note(text, 0.0)
    assert printed == ["refused", "not found", "refused"]


def test_a_prompt_without_a_field_is_a_warning(tmp_path: Path, replica: ReplicaThread) -> None:
    status, _, text = asked(tmp_path, b"a\n", "Say {text}", "--engine", replica.url)
    assert (status, text.splitlines()[0].partition(",")[0]) == (0, "warning: the prompt has no field")


def test_more_requests_than_files_may_be_open_are_refused(tmp_path: Path, replica: ReplicaThread) -> None:
    ask = [sys.executable, "-m", "forebay", "ask", "{{ text }}", "--engine", replica.url, "--capacity", "300"]

    def asked(limits: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh", *ask],
            env={**os.environ, "FOREBAY_HOME": str(tmp_path)},
            input=b"a\n",
            capture_output=True,
            timeout=300,
            check=False,
        )

    refused = asked("ulimit -n 256")
    words = (
        "forebay: capacity: expected at most 192, found 300: this process may open 256 files; raise the limit"
    )
    assert refused.returncode == 2
    assert words in " ".join(refused.stderr.decode().split())
    assert asked("ulimit -S -n 256").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{{ text"], "prompt: expected a template"),
        (["x", "--choices", "a"], "--choices: expected 2 to 1000 answers"),
        (["x", "--choices", "a,b", "--schema", "s.json"], "--choices: not allowed with --schema"),
        (["x", "--schema", "none.json"], "--schema: none.json cannot be read"),
        (["x", "--set", "sampling.max_token=3"], "did you mean 'max_tokens'"),
        (
            ["x", "--api-key-env", "NO_SUCH_KEY"],
            "engine.api_key: environment variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_a_mistake_is_reported_before_a_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal("ask", *words, "--engine", "http://127.0.0.1:1")
