from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch import EngineOptions, best_type, local_replicas
from forebay.engine.launch.dtype import TYPES
from forebay.engine.launch.local import given_dtype, resolve_model
from forebay.errors import SettingError
from forebay.settings import Settings, load_settings


def settings(home: Path) -> Settings:
    return Settings(home=home, python=Path("/no/such/python"))


def test_accepted_model_names(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert resolve_model("default", settings(tmp_path)) == (
        str(tmp_path / "models" / "smollm2-135m-instruct"),
        "smollm2-135m-instruct",
    )
    assert resolve_model(str(tmp_path / "mine"), settings(tmp_path)) == (str(tmp_path / "mine"), "mine")
    assert resolve_model("owner/name-1.5", settings(tmp_path)) == ("owner/name-1.5", "owner/name-1.5")


@pytest.mark.parametrize("model", ["", "name", "../up/there", "a/b/c", "--flag", "owner/", "x" * 999])
def test_rejected_model_names(tmp_path: Path, model: str) -> None:
    with pytest.raises(SettingError, match="expected default"):
        resolve_model(model, settings(tmp_path))


def test_directory_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no config\.json"):
        resolve_model(str(tmp_path), settings(tmp_path))


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (0, EngineOptions()),
        (65, EngineOptions()),
        (1, EngineOptions(cores=(4094,))),
        (1, EngineOptions(kv_cache_gib=0)),
        (1, EngineOptions(port_base=80)),
        (1, EngineOptions(max_model_len=0)),
    ],
)
def test_wrong_options_fail_before_the_installation(
    tmp_path: Path, count: int, options: EngineOptions
) -> None:
    with pytest.raises(SettingError), local_replicas(count, options, settings=settings(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "dtype"),
    [
        ((), None),
        (("--seed", "3"), None),
        (("--dtype", "half"), "half"),
        (("--dtype=float32", "--seed", "3"), "float32"),
        (("--dtype", "half", "--dtype=float32"), "float32"),
        (("--dtype",), None),
    ],
)
def test_dtype_among_vllm_arguments_is_respected(extra: tuple[str, ...], dtype: str | None) -> None:
    assert given_dtype(extra) == dtype


@pytest.mark.vllm
def test_real_replica_answers_by_schema_in_compact_json(local_engine: Any) -> None:
    home = load_settings()
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}, "topic": {"type": "string", "maxLength": 12}},
        "required": ["mood", "topic"],
        "additionalProperties": False,
    }
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "What a lovely fight that was! Its mood and topic?"}],
        "max_tokens": 48,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "event", "schema": schema}},
    }
    (replica,) = local_engine.replicas
    assert len(replica.processes()) >= 3, "the supervisor, the server and the model"
    assert replica.dtype == best_type(home).name
    assert best_type(home).gflops is not None, "this processor was measured"
    assert {best_type(home).name} <= set(TYPES)
    call = urllib.request.Request(
        f"{local_engine[0]}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(call, timeout=400) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
    assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) == text
    assert set(json.loads(text)) == {"mood", "topic"}
