"""The demo's prompts: answers are parsed, and the default model's are right for generated posts."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.demo.plan import DemoOptions, demo_of
from forebay.cli.demo.topics import WORDS, answer_text, answered_topic, weighs_topics
from forebay.connectors.generator.posts import TOPICS
from forebay.engine.client import HttpEngine
from forebay.records import JSON, Request


def test_only_the_default_model_uses_likelihoods(tmp_path: Path) -> None:
    assert weighs_topics("smollm2-135m-instruct")
    assert not weighs_topics("Qwen/Qwen2.5-7B-Instruct")
    assert WORDS.keys() == TOPICS.keys()
    assert len({token for token, _ in WORDS.values()}) == len(WORDS)
    spec = demo_of(DemoOptions(out=tmp_path, by_likelihood=True)).spec
    assert (spec.engine.api, spec.sampling.max_tokens, spec.output) == ("completions", 1, None)
    bias: Any = spec.sampling.extra["logit_bias"]
    assert all(50 < value <= 100 for value in bias.values())
    assert bias["48579"] > bias["1114"], "a word that the model predicts too rarely gets a higher bias"


def test_own_file_uses_a_schema(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a"}\n')
    demo = demo_of(DemoOptions(out=tmp_path, input=file, by_likelihood=True))
    assert demo.spec.output is not None
    assert (demo.spec.engine.api, demo.made_up, demo.planted) == ("chat", False, None)


@pytest.mark.parametrize(
    ("answer", "topic", "words"),
    [
        (" outage", "outage", "outage"),
        ({"sentiment": "negative", "topic": "outage"}, "outage", "negative, outage"),
        ("", "other", ""),
        ({"topic": 3}, "other", "3"),
        (None, "other", "None"),
    ],
)
def test_answers_to_both_questions_are_read(answer: JSON, topic: str, words: str) -> None:
    assert (answered_topic(answer), answer_text(answer)) == (topic, words)


def token_of(word: str, url: str, model: str) -> Any:
    """The tokens of `word`, by the engine at `url`."""
    body = {"model": model, "prompt": word, "add_special_tokens": False}
    headers = {"Content-Type": "application/json"}
    call = urllib.request.Request(f"{url}/tokenize", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(call) as response:
        return json.load(response)["tokens"]


@pytest.mark.long
@pytest.mark.vllm
async def test_the_default_model_names_most_topics_of_made_up_posts(
    local_engine: Any, tmp_path: Path
) -> None:
    demo = demo_of(DemoOptions(out=tmp_path, events=300, seed=17, by_likelihood=True))
    template, generator = demo.spec.prompt_template(), demo.spec.source.generator()  # type: ignore[attr-defined]
    assert template is not None
    for topic, (token, _) in WORDS.items():
        assert token_of(f" {topic}", local_engine[0], local_engine.model) == [token]
    engine = HttpEngine(local_engine[0])
    right = 0
    for index in range(150):
        post = generator.event(index)
        prompt = template.render(post.fields)
        assert isinstance(prompt, str)
        request = Request(str(index), local_engine.model, prompt=prompt, sampling=demo.spec.sampling.value())
        answer = await engine.complete(request, timeout_s=60)
        assert answered_topic(answer.text) in TOPICS
        right += answered_topic(answer.text) == post.fields["gold_topic"]
    await engine.close()
    assert right / 150 >= 0.75
