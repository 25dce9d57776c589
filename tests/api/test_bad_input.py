from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import forebay as fb
from forebay.errors import SettingError
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.endpoints import KubernetesReplicas

URL = "http://127.0.0.1:9"
ASK = fb.Inference(URL, model="m", prompt="{{ text }}")


class Handler(BaseModel):
    call: Callable[[str], str]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"engine": "gpu-box:8000"}, "http"),
        ({"engine": []}, "a fleet needs one of"),
        ({"engine": 8000}, "engine: expected a URL"),
        ({"model": ""}, "model: expected a text"),
        ({"prompt": "{{ text"}, "prompt"),
        ({"prompt": b"{{ text }}"}, "prompt: expected a text"),
        ({"prompt": None, "messages": "{{ text }}"}, "messages: expected a list of Message"),
        (
            {"prompt": None, "messages": [{"user": "{{ text }}"}]},
            "expected a list of Message, found a value of type dict in it",
        ),
        ({"messages": [fb.Message("user", "x")]}, "either a prompt or messages"),
        ({"api": "responses"}, "api: expected chat or completions"),
        ({"schema": {"type": "objct"}}, "is not a JSON schema"),
        ({"schema": int}, "int is not a pydantic model"),
        ({"schema": Handler}, "no JSON schema can express Handler"),
        ({"timeout_s": 0}, "timeout_s: expected a number of seconds"),
        ({"deadline_s": "60"}, "deadline_s: expected a number of seconds"),
        ({"capacity": 0}, "capacity: expected a whole number"),
        ({"capacity": 1.5}, "capacity: expected a whole number"),
        ({"sampling": {"max_tokens": 3}}, "sampling: expected a Sampling"),
        ({"retry": 3}, "retry: expected a RetryPolicy"),
        ({"journal": 3}, "journal: expected the path"),
        ({"priority": "{{ "}, "priority"),
        ({"api_key": {"env": "A", "file": "B"}}, "never the key itself"),
    ],
)
def test_invalid_options_are_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        fb.Inference(**{"engine": URL, "prompt": "{{ text }}", **wrong})


def test_literal_api_key_is_not_shown() -> None:
    with pytest.raises(SettingError) as caught:
        fb.Inference(URL, prompt="x", api_key="sk-secret")  # type: ignore[arg-type]
    assert "sk-secret" not in str(caught.value)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text())
)
names = st.sampled_from([name for name in fb.Inference.__dataclass_fields__ if name != "_"])


@given(st.dictionaries(names, anything, max_size=4))
def test_any_options_are_accepted_or_rejected(options: dict[str, Any]) -> None:
    inference = None
    with suppress(SettingError):
        inference = fb.Inference(**{"engine": URL, "prompt": "{{ text }}", **options})
    if inference is not None:
        assert inference.spec("m").model == "m"
        assert inference.capacity >= 1
        assert inference.timeout_s > 0


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        ({}, "one of: URLs, file=, dns="),
        ({"file": "a", "dns": "http://a:1"}, "one of: URLs, file=, dns="),
        ({"dns": "https://a:1"}, "dns: expected http"),
        ({"file": "a", "routing": "fastest"}, "policy: expected one of"),
        ({"file": "a", "kv_events": "here"}, "kv_events"),
        ({"file": "a", "prefill": ["p:1"]}, "the engine's URL is 'p:1'"),
        (
            {"file": "a", "prefill": fb.Fleet(dns="http://a:1", prefill=["http://p:1"])},
            "prefill: expected servers that prefill, found a fleet with 'prefill' of its own",
        ),
    ],
)
def test_invalid_fleets_are_rejected(fleet: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        fb.Fleet(**fleet)


@pytest.mark.parametrize(
    ("prefill", "replicas"),
    [
        (["http://p:1"], FixedReplicas(("http://p:1",))),
        (fb.Fleet(kubernetes="prefill:http"), KubernetesReplicas("prefill:http")),
        ((), None),
    ],
)
def test_prefill_servers_are_urls_or_a_fleet(prefill: Any, replicas: Any) -> None:
    assert fb.Fleet("http://d:1", prefill=prefill).prefill == replicas


@pytest.mark.flink
class TestStreams:
    @pytest.fixture
    def env(self, flink_logs: Path) -> Any:
        from forebay.flink.jvm import start_jvm

        start_jvm(flink_logs, heap_mb=768)
        return fb.environment()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"key": "user"}, r"key: 'user' names no field; write a template such as '\{\{ user \}\}'"),
            ({"key": 3}, "key: expected a template or a function"),
            ({"id": "{{ id"}, "id"),
            ({"id": "{{ id }}"}, "id names the field 'id', .* they have text"),
            ({"inference": fb.Inference(URL, model="m")}, "has no prompt"),
            ({"inference": fb.Inference(URL, model="m", prompt="{{ body }}")}, "'body'.* they have text"),
            ({"inference": "http://x"}, "expected an Inference"),
            ({"to_event": "text"}, "to_event: expected a function"),
            ({"ordering": "key"}, "ordering by key needs a key"),
            ({"ordering": "keys"}, 'ordering: expected "unordered" or "key", found \'keys\''),
            ({"shards": 0}, "shards must be"),
        ],
    )
    def test_invalid_arguments_are_rejected(self, env: Any, options: dict[str, Any], words: str) -> None:
        from pyflink.common import Types

        stream = env.from_collection(["a"], Types.STRING())
        with pytest.raises(SettingError, match=words):
            fb.infer(stream, **{"inference": ASK, **options})

    def test_duplicate_operator_name_is_rejected(self, env: Any, tmp_path: Path) -> None:
        from pyflink.common import Types

        taken = "name: 'infer' is taken by another operator of this environment; give each a name"
        stream = env.from_collection(["a"], Types.STRING())
        answered = fb.infer(stream, ASK)
        with pytest.raises(SettingError, match=taken):
            fb.infer(stream, ASK)
        with pytest.raises(SettingError, match=taken):
            fb.sessions(stream, fb.Inference(URL, model="m"), key=lambda event: "k", name="infer")
        fb.infer(stream, ASK, name="other")
        fb.write_jsonl(answered.results, tmp_path / "out")
        with pytest.raises(SettingError, match=r"name: 'write .*out' is taken"):
            fb.write_jsonl(answered.dead_letters, tmp_path / "out")
        (tmp_path / "a.txt").write_text("a\n")
        fb.read_text(env, tmp_path / "a.txt")
        with pytest.raises(SettingError, match="name: 'source' is taken"):
            fb.read_text(env, tmp_path / "a.txt")
        env._j_stream_execution_environment.getStreamGraph()  # As `execute` does, it forgets them.
        assert fb.infer(env.from_collection(["a"], Types.STRING()), ASK).results

    def test_template_may_name_a_field_of_unknown_rows(self, env: Any) -> None:
        from pyflink.common import Types

        stream = env.from_collection(["a"], Types.STRING())
        optional = "{{ text }}{% if body is defined %}{{ body }}{% endif %}{{ event.other | default('') }}"
        assert fb.infer(stream, fb.Inference(URL, model="m", prompt=optional)).results

    def test_invalid_streams_are_rejected(self, env: Any, tmp_path: Path) -> None:
        from pyflink.common import Types

        answered = fb.infer(env.from_collection(["a"]), ASK)
        numbers = env.from_collection([1], Types.INT())
        with pytest.raises(SettingError, match="elements of type Integer: pass to_event="):
            fb.infer(numbers, ASK)
        assert fb.infer(numbers, ASK, to_event=lambda number: {"text": str(number)}, name="other").results
        with pytest.raises(SettingError, match="holds Result objects: pass to_event="):
            fb.infer(answered.results, ASK)
        with pytest.raises(SettingError, match=r"expected a DataStream, found Outputs; take its \.results"):
            fb.infer(answered, ASK)
        with pytest.raises(
            SettingError, match="write_jsonl: expected a DataStream, found a value of type list"
        ):
            fb.write_jsonl([1], tmp_path)
        with pytest.raises(SettingError, match="expected a Program"):
            fb.infer_stateful(numbers, fb.Program, fb.Inference(URL, model="m"), key="{{ user }}")
        with pytest.raises(SettingError, match="leave prompt out of the Inference"):
            fb.sessions(env.from_collection(["a"]), ASK, key=lambda event: "k")

    def test_template_fields_are_checked_against_the_files_rows(self, env: Any, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,body\n1,x\n")
        with pytest.raises(SettingError, match=r"prompt names the field 'text'.* they have body, id"):
            fb.infer(fb.read_csv(env, tmp_path / "a.csv"), ASK)
        with pytest.raises(SettingError, match="does not exist"):
            fb.read_jsonl(env, tmp_path / "none.jsonl")
        with pytest.raises(SettingError, match="needs the time of each event"):
            fb.read_jsonl(env, tmp_path / "a.csv", out_of_orderness_s=3)

    def test_templates_for_topics_are_checked(self, env: Any) -> None:
        from pyflink.common import Types

        stream = env.from_collection(["a"], Types.STRING())
        with pytest.raises(SettingError, match=r"topics: id names the field 'typo', .* they have text"):
            fb.topics(stream, fb.Inference(URL, model="m"), id="{{ typo }}", embeddings="words")

    def test_all_invalid_application_settings_are_reported(self, env: Any) -> None:
        ask = fb.Inference(URL, model="m")
        with pytest.raises(SettingError) as caught:
            fb.summaries(env.from_collection(["a"]), ask, key="{{ event }}", window="slidin", siz_s=3)
        assert str(caught.value).splitlines() == [
            "summaries: window: expected 'tumbling', 'sliding', 'session' or 'rolling', found 'slidin'; "
            "did you mean 'sliding'?",
            "summaries: unknown key 'siz_s'; did you mean 'size_s'?",
        ]

    def test_missing_connector_is_reported_with_its_command(
        self, env: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from forebay.api import kafka

        monkeypatch.setattr(kafka, "CONNECTOR", "not.on.the.class.path")
        with pytest.raises(SettingError, match="forebay connectors install kafka"):
            fb.read_kafka(env, "broker:9092", "posts", group="g")
        with pytest.raises(SettingError, match="expected HOST:PORT"):
            fb.write_kafka(env.from_collection(["a"]), "broker", "posts", name="n")

    def test_own_environment_can_be_used(self, env: Any) -> None:
        from pyflink.common import Configuration
        from pyflink.datastream import StreamExecutionEnvironment

        own = StreamExecutionEnvironment.get_execution_environment(Configuration())
        with pytest.raises(SettingError, match=r"python\.execution-mode: expected thread"):
            fb.infer(own.from_collection(["a"]), ASK)
        threads = Configuration()
        threads.set_string("python.execution-mode", "thread")
        own = StreamExecutionEnvironment.get_execution_environment(threads)
        assert fb.infer(own.from_collection(["a"]), ASK).results


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoints": 3}, "checkpoints: expected the path"),
        ({"checkpoints": "x", "every_s": 0}, "every_s: expected"),
        ({"cluster": "host"}, "cluster must be HOST:PORT"),
        ({"parallelism": 0}, "parallelism must be"),
        ({"options": {"python.execution-mode": "process"}}, "leave it out"),
    ],
)
def test_invalid_environments_are_rejected(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=words):
        fb.environment(**options)
