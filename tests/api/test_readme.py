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
        with answered.results.execute_and_collect() as found:
            results = list(found)
    assert {result.fields["text"] for result in results} == set(texts[:2])
    assert all(type(result) is fb.Result and isinstance(result.answer, Topic) for result in results)
    assert all(result.answer.word.startswith("ECHO:") for result in results)
    (part,) = (tmp_path / "dead").glob("part-*.jsonl")
    (letter,) = [orjson.loads(line) for line in part.read_bytes().splitlines()]
    assert (letter["cause"], orjson.loads(letter["input"])) == ("template_failed", {"other": "no text"})
