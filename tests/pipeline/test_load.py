"""Every mistake in a pipeline file becomes a line of one `SettingError`; secrets are never shown."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.files.settings import JsonlSink
from forebay.errors import SettingError
from forebay.pipeline.load import load_pipeline, load_spec, parse_spec
from forebay.pipeline.spec import PipelineSpec

GOOD: dict[str, Any] = {
    "name": "triage",
    "source": {"type": "jsonl", "path": "in.jsonl"},
    "prompt": "{{ text }}",
    "sink": {"type": "jsonl", "path": "out/"},
}


def changed(**changes: Any) -> dict[str, Any]:
    """`GOOD` with keys set; `source__path` is a key of a mapping, None of a key takes it away."""
    data = copy.deepcopy(GOOD)
    for name, value in changes.items():
        *above, last = name.split("__")
        place = data
        for step in above:
            place = place.setdefault(step, {})
        place[last] = value
    return data


def mistakes(data: Any) -> list[str]:
    with pytest.raises(SettingError) as caught:
        parse_spec(data, name="f")
    return str(caught.value).splitlines()


def write(path: Path, text: str) -> Path:
    file = path / "pipeline.yaml"
    file.write_text(text)
    return file


def test_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    spec = load_spec(
        write(
            tmp_path / "deep",
            "name: a\nsource: {type: jsonl, path: ../in}\nprompt: x\nsink: {type: jsonl, path: /abs/out/}\n"
            "journal: {path: j.db}\nengine: {api_key: {file: key}}\n",
        )
    )
    deep = tmp_path / "deep"
    assert spec.source.path == str(deep / "../in")  # type: ignore[union-attr]
    assert isinstance(spec.sink, JsonlSink)
    assert spec.sink.path == "/abs/out"
    assert spec.dead_letters.path == "/abs/out-dead-letters"
    assert spec.checkpoint.dir == str(deep / ".forebay/a/checkpoints")
    assert spec.journal is not None
    assert spec.journal.config().path == deep / "j.db"
    assert spec.engine.api_key is not None
    assert spec.engine.api_key.file == str(deep / "key")


def test_dead_letters_have_a_default_folder_if_the_sink_has_none() -> None:
    assert parse_spec(changed(sink={"type": "stdout"})).dead_letters.path == "triage-dead-letters"


def test_partial_checkpoint_settings_keep_the_default_folder() -> None:
    spec = parse_spec(changed(checkpoint={"interval_s": 2}))
    assert (spec.checkpoint.dir, spec.checkpoint.interval_s) == (".forebay/triage/checkpoints", 2.0)


PRICES = {"prompt": 0.15, "completion": 0.6}
BUDGET = {"per_key_per_day": 0.5}


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ({"capactiy": 3}, "unknown key 'capactiy'; did you mean 'capacity'?"),
        ({"source__pth": 3}, "source: unknown key 'pth'; did you mean 'path'?"),
        ({"output": {"schema": {}, "shema": 1}}, "output: unknown key 'shema'; did you mean 'schema'?"),
        ({"source": {"type": "jsonl"}}, "source.path: missing; it has no default"),
        ({"source": {"type": "jsonnl", "path": "x"}}, "did you mean 'jsonl'?"),
        ({"source": {"path": "x"}}, "source: expected a mapping with the key 'type', found one without"),
        ({"source": "x"}, "source: expected a mapping"),
        ({"name": "My Job"}, "name: expected at most 63 of a-z, 0-9 and '-', not '-' first; found 'My Job'"),
        ({"capacity": "64"}, "capacity: expected a whole number, found '64'; remove the quotes"),
        ({"capacity": "six"}, "capacity: expected a whole number, found 'six'"),
        ({"deadline_s": "2.5"}, "deadline_s: expected a number, found '2.5'; remove the quotes"),
        ({"name": 12}, "name: expected a text, found 12"),
        ({"capacity": True}, "capacity: expected a whole number, found True"),
        ({"capacity": 0}, "capacity: expected a number greater than 0, found 0"),
        (
            {"checkpoint": {"interval_s": 1e18}},
            "checkpoint.interval_s: expected a number less than or equal to 1000000000, found 1e+18",
        ),
        ({"checkpoint": {"timeout_s": 1e18}}, "checkpoint.timeout_s: expected a number less than or equal"),
        (
            {"event_time": {"out_of_orderness_s": 1e18}},
            "event_time.out_of_orderness_s: expected a number less than or equal",
        ),
        ({"timeout_s": float("inf")}, "timeout_s: expected a finite number, found inf"),
        ({"source__follow": "yes"}, "source.follow: expected true or false, found 'yes'"),
        ({"engine__url": "localhost:8000"}, "engine.url: expected a URL such as http://host:port, found"),
        ({"engine__url": "http://h:99999"}, "engine.url: expected a URL"),
        ({"engine": ["http://a:1", "b"]}, "engine[1]: expected a URL"),
        (
            {"engine": {"url": "http://a:1", "file": "x"}},
            "engine: expected one of 'url', 'file', 'dns', 'kubernetes' and 'ray'",
        ),
        ({"engine__dns": "name"}, "engine.dns: expected a URL such as http://host:port"),
        ({"routing": "best"}, "routing: expected one of random, round_robin, least_requests"),
        ({"sampling__stop": "x"}, "sampling.stop: expected a list, found 'x'"),
        ({"retry": None}, "retry: expected a mapping, found nothing"),
        ({"prompt": "a\n{{ x"}, "prompt: expected a template; prompt, line 2: unexpected end of template"),
        ({"prompt": None}, "prompt: expected a template here or under 'messages', found neither"),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            "expected either 'prompt' or 'messages', found both",
        ),
        (
            {"prompt": None, "messages": [{"role": "bot", "content": "x"}]},
            "messages[0].role: expected 'system'",
        ),
        ({"prompt": None, "messages": [3]}, "messages[0]: expected a mapping, found 3"),
        (
            {"prompt": None, "messages": [{"role": "user", "content": "x"}], "engine__api": "completions"},
            "messages: expected 'prompt' with engine.api completions",
        ),
        ({"key": "{{ a.format() }}"}, "key: expected a template; key, line 1: there is no method 'format'"),
        ({"id": "{{"}, "id: expected a template; id, line 1"),
        (
            {"output": {"schema": {"type": "objct"}}},
            "output.schema: expected a JSON schema; output.schema.type",
        ),
        ({"output": {"schema": {"$ref": "http://x/y"}}}, "only references within the schema"),
        ({"parallelism": 9}, "parallelism: expected at most shards (8), found 9"),
        ({"parallelism": 2, "task_managers": 3}, "task_managers: expected at most parallelism (2), found 3"),
        ({"timeout_s": 301}, "timeout_s: expected at most deadline_s (300), found 301"),
        ({"ordering": "key"}, "ordering: expected a 'key' template with ordering: key, found none"),
        ({"source__replay": {"speed": 2}}, "source.replay: expected source.time with replay"),
        ({"source__replay": {}, "source__time": "t", "source__follow": True}, "source.replay: expected null"),
        ({"event_time": {}}, "event_time: expected source.time with event_time"),
        ({"source__time_format": "rfc"}, "source.time_format: expected another format"),
        ({"source__time_format": "%Q"}, "source.time_format: expected a pattern that strptime takes; 'Q' is"),
        ({"source__time_format": "%Y %Y"}, "source.time_format: expected a pattern that strptime takes"),
        ({"source__time_format": "%Y %"}, "source.time_format: expected a pattern that strptime takes"),
        (
            {"source": {"type": "generator", "burst": {"start_s": 1, "duration_s": 2, "topic": "x"}}},
            "source.burst.topic: expected 'outage', 'weather'",
        ),
        ({"shards": 129}, "shards: expected a number less than or equal to 128, found 129"),
        ({"parallelism": 129}, "parallelism: expected a number less than or equal to 128, found 129"),
        ({"retry__max_backoff_s": 0.1}, "retry.max_backoff_s: expected at least base_s"),
        ({"dead_letters": {"type": "jsonl", "path": "out"}}, "dead_letters.path: expected a directory apart"),
        (
            {"dead_letters": {"type": "jsonl", "path": "out/dead"}},
            "dead_letters.path: expected a directory apart",
        ),
        ({"source__path": "out"}, "sink.path: expected a directory apart from source.path"),
        ({"source__path": "in", "checkpoint": {"dir": "in/state"}}, "checkpoint.dir: expected a place apart"),
        ({"source__path": "in", "checkpoint": {"dir": "in"}}, "checkpoint.dir: expected a place apart"),
        ({"source__path": "in", "journal": {"path": "in/a/j.db"}}, "journal.path: expected a place apart"),
        ({"journal": {"path": "in.jsonl"}}, "journal.path: expected a place apart from source.path"),
        ({"sink__path": "s3://bucket"}, "sink.path: expected s3://bucket/prefix"),
        ({"sink__path": "gs://bucket/x"}, "sink.path: expected a path on this machine"),
        ({"sink__path": "~/out"}, "sink.path: expected a path without '~'"),
        ({"sink__path": ""}, "sink.path: expected a path, found none"),
        ({"flink": {"env.a": [1]}}, "flink.env.a: expected a text, a number, true or false"),
        ({"source": {"type": "sse"}}, "source.url: missing"),
        ({"source": {"type": "websocket", "url": "http://x"}}, "source.url: expected a URL such as ws://"),
        ({"source": {"type": "dead_letters", "path": "d", "format": "csv"}}, "source: expected 'columns'"),
        (
            {"source": {"type": "dead_letters", "path": "d", "format": "text", "payload": "after"}},
            "source: expected no 'payload' with format: text",
        ),
        ({"source": {"type": "csv", "path": "d", "delimiter": ";;"}}, "source.delimiter: expected"),
        (
            {"prices": {"a": PRICES, "b": PRICES}, "engine__model": "m"},
            "prices: expected the model 'm', or '*' for any, found 'a', 'b'",
        ),
        ({"prices": {"*": {"prompt": 1.0}}}, "prices.*.completion: missing"),
        (
            {"prices": {"*": {**PRICES, "cached": 0.0000001}}},
            "prices.*.cached: expected a price with at most 6 decimals, found 1e-07",
        ),
        ({"budget": BUDGET, "key": "k"}, "budget: expected 'prices' with it, found none: add what"),
        (
            {"budget": BUDGET, "prices": {"*": PRICES}},
            "budget: expected a 'key' template with it, found none: add key, such as '{{ user }}'",
        ),
        (
            {"prices": {"*": PRICES}, "sampling": {"extra": {"max_completion_tokens": None}}},
            "sampling.extra.max_completion_tokens: expected a whole number > 0 with prices, found None",
        ),
        (
            {"prices": {"*": PRICES}, "sampling": {"extra": {"n": 2, "model": "big"}}},
            "sampling.extra.model: expected none with prices",
        ),
        (
            {
                **{"prompt": None, "application": {"type": "trends"}, "source__time": "t", "event_time": {}},
                **{"budget": BUDGET, "prices": {"*": PRICES}, "key": "k"},
            },
            "budget: expected none with application trends",
        ),
        ({"engine": {"api_key": {}}}, "engine.api_key: expected exactly one of 'env' and 'file'"),
        ({"engine": {"api_key": {"env": "A", "file": "b"}}}, "engine.api_key: expected exactly one of"),
    ],
)
def test_each_mistake_names_its_key_and_the_expected_value(changes: dict[str, Any], mistake: str) -> None:
    found = mistakes(changed(**changes))
    assert len(found) == 1, found
    assert mistake in found[0]
    assert found[0].startswith("f: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"type": "csv", "path": "a", "columns": ["x"], "time": "x", "replay": {"speed": 10}}},
        {"source": {"type": "generator", "burst": {"start_s": 1, "duration_s": 2}}, "event_time": {}},
        {"source__time": "t", "source__time_format": "%d/%m/%Y %H:%M %%"},
        {"source__time": "t", "source__time_format": "%G-W%V-%u"},
        {"shards": 128, "parallelism": 128},
        {"source": {"type": "sse", "preset": "wikimedia"}, "event_time": {"out_of_orderness_s": 5}},
        {"source": {"type": "websocket"}},
        {"source": {"type": "websocket", "url": "ws://localhost:1", "headers": {"User-Agent": "me"}}},
        {
            "source": {"type": "dead_letters", "path": "out-dead-letters"},
            "dead_letters__type": "jsonl",
            "dead_letters__path": "again",
        },
        {"source__path": ".", "sink__path": "/out", "journal": {"path": ".state/j.db"}},
        {"source__path": "in", "journal": {"path": "in.db"}, "checkpoint": {"dir": "in/_state"}},
        {"flink": {"env.a": 1, "env.b": True, "env.c": "x", "env.d": 1.5}},
        {"key": "{{ user }}", "ordering": "key", "id": "{{ id }}"},
        {"engine": {"url": "https://h:1/v1", "model": "m", "api": "completions", "api_key": {"env": "KEY"}}},
    ],
)
def test_valid_files_load(changes: dict[str, Any]) -> None:
    assert isinstance(parse_spec(changed(**changes)), PipelineSpec)


def test_all_mistakes_are_listed_by_line(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "name: a\n"
        "source:\n"
        "  type: jsonl\n"
        "  pth: x\n"
        "prompt: x\n"
        "sink: {type: stdout}\n"
        "engine:\n"
        "  api: chatt\n"
        "capacty: 1\n",
    )
    with pytest.raises(SettingError) as caught:
        load_spec(file)
    assert str(caught.value).splitlines() == [
        f"{file}:2: source.path: missing; it has no default",
        f"{file}:4: source: unknown key 'pth'; did you mean 'path'?",
        f"{file}:8: engine.api: expected 'chat' or 'completions', found 'chatt'; did you mean 'chat'?",
        f"{file}:9: unknown key 'capacty'; did you mean 'capacity'?",
    ]


SMALL = "name: a\nsource: {type: generator}\nprompt: x\nsink: {type: stdout}\n"


@pytest.mark.heavy
def test_list_of_mistakes_is_bounded() -> None:
    assert len(mistakes({f"k{i}": 1 for i in range(500)})) == 21


SECRET = "sk-3141592653"


@pytest.mark.parametrize(
    "changes",
    [
        {"engine__api_key": SECRET},
        {"engine__api_key": [SECRET]},
        {"engine__api_key": {"env": SECRET}},
        {"engine__api_key": {"value": SECRET}},
        {"engine__api_key": {SECRET: 1}},
        {"engine__api_key": {"file": {"x": SECRET}}},
        {"engine__url": f"http://user:{SECRET}@host"},
        {"engine__url": f"ftp://host?key={SECRET}"},
        {"engine__url": f"http://host:{SECRET}@x"},
        {"source": {"type": "sse", "url": "http://h", "headers": {"Authorization": SECRET}}},
        {"source": {"type": "sse", "url": "http://h", "headers": {"User-Agent": f"{SECRET}\n"}}},
        {"source": {"type": "sse", "url": "http://h", "headers": {"User-Agent": [SECRET]}}},
        {"source": {"type": "sse", "url": "http://h", "headers": SECRET}},
        {"source": {"type": "sse", "url": f"http://h/ ?{SECRET}"}},
    ],
)
def test_literal_secrets_are_rejected_and_not_shown(changes: dict[str, Any], tmp_path: Path) -> None:
    assert SECRET not in "\n".join(mistakes(changed(**changes)))


def test_literal_key_is_reported_with_its_line() -> None:
    assert "use an environment variable" in mistakes(changed(engine__api_key=SECRET))[0]


def test_headers_are_not_in_the_repr() -> None:
    data = changed(source={"type": "sse", "url": "http://h", "headers": {"User-Agent": SECRET}})
    assert SECRET not in repr(parse_spec(data))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"- 1", "expected a mapping with the keys of a pipeline, found a list"),
        (b"", "found nothing"),
        (b"x" * 1_048_577, "larger than 1048576 bytes"),
    ],
)
def test_files_that_are_not_pipelines(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        load_spec(file)
    assert words in str(caught.value)


def test_a_loop_of_links_is_reported_as_one(tmp_path: Path) -> None:
    loop = tmp_path / "p.yaml"
    loop.symlink_to(loop)
    with pytest.raises(SettingError, match=r"p.yaml cannot be read: Too many levels of symbolic links"):
        load_pipeline(str(loop))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.yaml cannot be read: No such file"):
        load_spec(tmp_path / "none.yaml")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from([*PipelineSpec.model_fields, "x"]),
        anything
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["jsonl", "csv", "sse", "generator"])},
            optional={"path": anything, "url": anything, "headers": anything, "burst": anything},
        ),
        max_size=5,
    )
)
def test_any_value_loads_or_raises_a_setting_error(changes: dict[str, Any]) -> None:
    with suppress(SettingError):
        parse_spec({**GOOD, **changes})
