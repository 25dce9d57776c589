"""Provenance of figures, without secrets."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.provenance import (
    command_of,
    file_hash,
    hidden,
    hidden_command,
    machine,
    provenance,
    widest,
)
from forebay.engine.launch.dtype import read_processor
from forebay.testing.waiting import wait_until


def test_provenance_has_machine_versions_and_given_values(tmp_path: Path) -> None:
    data = tmp_path / "trace.jsonl"
    data.write_bytes(b"{}\n" * 1_000_000)
    found = provenance(
        command=["forebay", "bench", "serve", "http://127.0.0.1:8100"],
        target="http://127.0.0.1:8100/v1/completions",
        model="small",
        seed=7,
        data=data,
    )
    assert found["command"] == "forebay bench serve http://127.0.0.1:8100"
    assert (found["target"], found["model"], found["seed"]) == (
        "http://127.0.0.1:8100/v1/completions",
        "small",
        7,
    )
    assert found["data"] == "trace.jsonl"
    assert found["data_sha256"] == hashlib.sha256(b"{}\n" * 1_000_000).hexdigest()
    assert found["versions"]["python"]
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_gb"] > 0
    assert "tokenizer" not in found
    assert orjson.loads(orjson.dumps(found)) == found


def test_the_flags_of_an_engine_are_reported_by_its_process() -> None:
    words = [sys.executable, "-c", "input()", "--max-model-len", "2048", "--api-key", "abc"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        wait_until(lambda: "2048" in (command_of(process.pid) or ""))
        found = provenance(command=[], processes={"engine": process.pid})
        process.communicate(b"\n")
    assert found["processes"]["engine"].endswith("--max-model-len 2048 --api-key '[hidden]'")
    assert "processes" not in provenance(command=[], processes={"engine": process.pid})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--api-key", "abc"], "--api-key '[hidden]'"),
        (["--api-key=abc"], "'--api-key=[hidden]'"),
        (["--hf-token", "abc", "--seed", "7"], "--hf-token '[hidden]' --seed 7"),
        (["-H", "X-Custom: abc"], "-H '[hidden]'"),
        (["--header", "Authorization: Bearer abc"], "--header '[hidden]'"),
        (["OPENAI_API_KEY=abc", "run"], "'OPENAI_API_KEY=[hidden]' run"),
        (["http://me:abc@host:80/v1?key=abc#abc"], "'http://[hidden]@host:80/v1?[hidden]'"),
        (["--extra", '{"a": "sk-abcdefgh12"}'], '--extra \'{"a": "[hidden]"}\''),
        (["--text", "Bearer abc"], "--text '[hidden]'"),
        (["--api-key", "--seed", "7"], "--api-key --seed 7"),
        (["--api-key", "one", "two", "--seed", "7"], "--api-key '[hidden]' '[hidden]' --seed 7"),
        (["--access-key=abc", "--private-key", "-abc"], "'--access-key=[hidden]' --private-key '[hidden]'"),
        (
            ["--extra", '{"n":{"api_key":"abc","token":{"a":1}}}'],
            '--extra \'{"n":{"api_key":"[hidden]","token":"[hidden]"}}\'',
        ),
        (['--extra={"password":"abc"}'], '\'--extra={"password":"[hidden]"}\''),
        (["--extra", '{"max_tokens":7}'], "--extra '{\"max_tokens\":7}'"),
        (["{not JSON"], "'{not JSON'"),
        # Other values stay.
        (["--output-tokens", "128", "--tokenizer", "gpt2"], "--output-tokens 128 --tokenizer gpt2"),
        (["--max-tokens=20", "--tokenizer-mode", "auto"], "--max-tokens=20 --tokenizer-mode auto"),
        (["http://127.0.0.1:8100/v1"], "http://127.0.0.1:8100/v1"),
    ],
)
def test_secrets_of_a_command_are_hidden(words: list[str], told: str) -> None:
    assert hidden_command(words) == told


@given(st.text(min_size=6, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_known_secret_never_appears(secret: str, before: str, after: str) -> None:
    if secret in "[hidden]…" or secret in before or secret in after:
        return
    told = hidden_command(["run", before + secret + after], [secret])
    assert secret not in told
    assert secret not in hidden(before + secret + after, [secret])


@pytest.mark.heavy
@pytest.mark.parametrize("piece", ["x", "a.", "token", "http://", "sk-"])
@pytest.mark.timeout(30)
def test_a_word_without_end_is_cut(piece: str) -> None:
    """The time is linear in its length: a quadratic search would take minutes."""
    assert len(hidden(piece * (300_000 // len(piece)))) < 600


def test_nothing_of_the_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-secret-value")
    assert b"a-secret-value" not in orjson.dumps(provenance(command=["run"]))


def test_widest_instruction_set_of_the_processor_is_reported() -> None:
    assert widest(frozenset({"sse2", "avx2", "avx512f", "avx512_bf16"})) == "avx512_bf16"
    assert widest(frozenset({"sse2", "avx2"})) == "avx2"
    assert widest(frozenset({"sse2"})) is None
    assert machine()["instructions"] == widest(read_processor().features)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        file_hash(tmp_path / "none")
