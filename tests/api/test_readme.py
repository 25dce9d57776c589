from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, field_validator

import forebay as fb
from forebay.testing import Fixed, ReplicaScript, ReplicaThread, ScriptedEngineFactory, wait_until


class Topic(BaseModel):
    """The schema of answers; the validator changes the word, so that converted answers can be told apart."""

    word: str

    @field_validator("word")
    @classmethod
    def _shout(cls, word: str) -> str:
        return word.upper()


def described(result: fb.Result) -> dict[str, str]:
    return {"text": result.fields["text"], "word": result.answer.word}


def lines_in(folder: Path) -> list[dict[str, str]]:
    return read_values(folder)


def read_values(folder: Path) -> list[Any]:
    parts = folder.glob("part-*.jsonl")
    return [orjson.loads(line) for part in parts for line in part.read_bytes().splitlines()]


@pytest.mark.flink
@pytest.mark.parametrize("parallelism", [1, 2])
def test_decoding_runs_in_the_operators_task(parallelism: int, flink_logs: Path) -> None:
    """So that no pickle is in flight between the two, where a checkpoint could contain it."""
    from pyflink.common import Types

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768)
    env = fb.environment(parallelism=parallelism)
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0)), model="m", prompt="{{ text }}")
    answered = fb.infer(env.from_collection(["a"]), ask)
    for each in (answered.results, answered.results, answered.dead_letters):
        each.key_by(lambda record: record.id or "", Types.STRING()).map(str, Types.STRING()).print()
    graph = env._j_stream_execution_environment.getStreamGraph(False).getJobGraph()
    tasks = [vertex.getName() for vertex in graph.getVerticesAsArray()]
    (task,) = [name for name in tasks if "infer" in name.split(" -> ")[0]]
    assert "Result objects" in task
    assert "DeadLetter objects" in task


@pytest.mark.flink
def test_functions_of_streams_of_objects(tmp_path: Path, flink_logs: Path) -> None:
    from pyflink.datastream import FilterFunction, FlatMapFunction, MapFunction

    from forebay.flink.jvm import start_jvm

    class Text(MapFunction):
        def map(self, value: fb.Result) -> str:
            return value.answer.word

    class Texts(FlatMapFunction):
        def flat_map(self, value: fb.Result) -> list[str]:
            return [value.answer.word] * 2

    class Even(FilterFunction):
        def filter(self, value: fb.Result) -> bool:
            return value.fields["n"] % 2 == 0

    start_jvm(flink_logs, heap_mb=768)
    env = fb.environment()
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0)), model="m", prompt="{{ text }}", schema=Topic)
    rows = [{"n": n, "text": f"line {n}"} for n in range(4)]
    results = fb.infer(env.from_collection(rows), ask).results
    for name, stream in {
        "plain": results,
        "map": results.map(lambda result: result.answer.word),
        "map-function": results.map(Text()),
        "flat-map": results.flat_map(lambda result: [result.answer.word] * 2),
        "flat-map-function": results.flat_map(Texts()),
        "filter": results.filter(lambda result: result.fields["n"] % 2 == 0),
        "filter-function": results.filter(Even()),
        "twice": results.filter(lambda result: True).filter(lambda result: result.fields["n"] == 3),
        "keyed": results.key_by(lambda result: result.fields["n"] % 2).map(lambda result: result.answer.word),
        "union": results.union(results),
        "models": results.map(lambda result: result.answer),
    }.items():
        fb.write_jsonl(stream, tmp_path / name)
    env.execute("functions")
    written = {folder.name: read_values(folder) for folder in tmp_path.iterdir()}
    words = [line["answer"]["word"] for line in written["plain"]]
    assert {word.islower() for word in words} == {True}, (
        "the model's answer is written, not the converted one"
    )
    shouted = sorted(word.upper() for word in words)
    assert sorted(written["map"]) == sorted(written["map-function"]) == sorted(written["keyed"]) == shouted
    assert sorted(written["flat-map"]) == sorted(written["flat-map-function"]) == sorted(shouted * 2)
    assert sorted(line["fields"]["n"] for line in written["filter"]) == [0, 2]
    assert sorted(line["fields"]["n"] for line in written["filter-function"]) == [0, 2]
    assert [line["fields"]["n"] for line in written["twice"]] == [3]
    assert len(written["union"]) == 8
    assert sorted(line["word"] for line in written["models"]) == shouted


@pytest.mark.long
@pytest.mark.flink
def test_same_program_resumes(tmp_path: Path, flink_logs: Path) -> None:
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "line {n}"}}\n' for n in range(200)))

    def program() -> Any:
        env = fb.environment(checkpoints=tmp_path / "state", every_s=0.2)
        ask = fb.Inference(
            ScriptedEngineFactory(Fixed(0.1)), model="m", prompt="{{ text }}", schema=Topic, capacity=4
        )
        answered = fb.infer(fb.read_jsonl(env, tmp_path / "in.jsonl"), ask)
        fb.write_jsonl(answered.results.map(described), tmp_path / "out")
        fb.write_jsonl(answered.dead_letters, tmp_path / "dead")
        return env

    job = program().execute_async("first")
    wait_until(lambda: len(lines_in(tmp_path / "out")) > 8, timeout_s=60)
    job.cancel()
    with suppress(Exception):  # A cancelled job ends with an error.
        job.get_job_execution_result().result()
    assert len(lines_in(tmp_path / "out")) < 200
    program().execute("second")
    assert sorted(line["text"] for line in lines_in(tmp_path / "out")) == sorted(
        f"line {n}" for n in range(200)
    )
    assert lines_in(tmp_path / "dead") == []


@pytest.mark.flink
def test_answers_are_instances_and_dead_letters_are_lines(tmp_path: Path, flink_logs: Path) -> None:
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
        # Not chained: values for this process were pickled inside Flink.
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
