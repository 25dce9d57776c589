"""A program with nothing but `import forebay as fb`, end to end."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pydantic import BaseModel, field_validator

import forebay as fb
from forebay.testing.delays import Fixed
from forebay.testing.replica import ReplicaScript, ReplicaThread


class Topic(BaseModel):
    """What the scripted replica is asked for; the validator shows whose instance it is."""

    word: str

    @field_validator("word")
    @classmethod
    def _shout(cls, word: str) -> str:
        return word.upper()


def described(result: fb.Result) -> dict[str, str]:
    return {"text": result.fields["text"], "word": result.answer.word}


def lines_in(folder: Path) -> list[dict[str, str]]:
    parts = folder.glob("part-*.jsonl")
    return [orjson.loads(line) for part in parts for line in part.read_bytes().splitlines()]


@pytest.mark.flink
def test_answers_are_instances_and_dead_letters_lines(tmp_path: Path, flink_logs: Path) -> None:
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768)
    with ReplicaThread(ReplicaScript(models=("m",), delay=Fixed(0.01))) as replica:
        env = fb.environment()
        texts = ["My router blinks red.", "Please refund me.", "no text"]
        lines = env.from_collection(texts)
        ask = fb.Inference(replica.url, model="m", prompt="What is this about? {{ text }}", schema=Topic)
        answered = fb.infer(
            lines, ask, to_event=lambda line: {"other": line} if line == "no text" else {"text": line}
        )
        fb.write_jsonl(answered.dead_letters, tmp_path / "dead")
        fb.write_jsonl(answered.results.map(described), tmp_path / "described")
        env.execute("readme")
        # Not chained to anything: what is given to this process was pickled inside Flink.
        answered = fb.infer(env.from_collection(texts[:2]), ask)
        with answered.results.execute_and_collect() as found:
            results = list(found)
    assert {result.fields["text"] for result in results} == set(texts[:2])
    assert all(isinstance(result.answer, Topic) for result in results)
    assert {described(result)["word"] for result in results} == {
        line["word"] for line in lines_in(tmp_path / "described")
    }
    assert all(result.answer.word.startswith("ECHO:") for result in results)
    (letter,) = lines_in(tmp_path / "dead")
    assert (letter["cause"], orjson.loads(letter["input"])) == ("template_failed", {"other": "no text"})
