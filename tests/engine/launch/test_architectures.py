from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from forebay.engine.launch import EngineOptions, local_replicas
from forebay.engine.launch.architectures import (
    ARCHITECTURES,
    PREFIX,
    RANDOM_WEIGHTS,
    TOKENIZER,
    architecture_directory,
    config_document,
    write_architecture,
)
from forebay.engine.launch.environment import default_model, engine_python
from forebay.engine.launch.local import resolve_model
from forebay.errors import LaunchError, SettingError, SetupError
from forebay.settings import Settings, load_settings

COUNT = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
for path in sys.argv[1:]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    print(type(model).__name__, sum(each.numel() for each in model.parameters()))
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(home=tmp_path, python=Path("/no/such/python"))
    source = default_model(settings)
    source.mkdir(parents=True)
    for name in TOKENIZER:
        (source / name).write_text(f"of the default model: {name}")
    return settings


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_directory_has_the_config_and_the_default_tokenizer(settings: Settings, name: str) -> None:
    found = write_architecture(PREFIX + name, settings)
    assert json.loads((found / "config.json").read_text()) == config_document(name)
    for file in TOKENIZER:
        assert (found / file).read_text() == f"of the default model: {file}"
    assert resolve_model(PREFIX + name, settings) == (str(found), f"random-{name}")


def test_directory_is_rewritten_only_if_it_differs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write_architecture("random:opt-125m", settings)
    (found / "kept").touch()
    assert write_architecture("random:opt-125m", settings) == found
    assert (found / "kept").exists()
    monkeypatch.setattr("forebay.engine.launch.architectures.RECIPE", 2)
    write_architecture("random:opt-125m", settings)
    assert not (found / "kept").exists()
    assert {path.name for path in settings.models.iterdir()} == {found.name, default_model(settings).name}


@pytest.mark.parametrize("model", ["random:", "random:opt", "random:../opt-125m"])
def test_unknown_architecture_is_rejected_with_the_known_ones(settings: Settings, model: str) -> None:
    with pytest.raises(SettingError, match="expected one of random:opt-125m, random:llama-151m"):
        architecture_directory(model, settings)
    with (
        pytest.raises(SettingError, match="expected one of"),
        local_replicas(1, EngineOptions(model=model), settings=settings),
    ):
        pass


def test_no_tokenizer_without_the_default_model(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, python=Path("unused"))
    with pytest.raises(SetupError, match="forebay setup"):
        write_architecture("random:opt-125m", settings)
    assert list(settings.models.iterdir()) == []


@pytest.mark.heavy
def test_vllm_runs_with_dummy_weights(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    python = engine_python(settings)
    python.parent.mkdir(parents=True)
    # An engine that prints its arguments, and ends.
    python.write_text('#!/bin/sh\necho "started with: $*"\nexit 3\n')
    python.chmod(0o755)
    local = "forebay.engine.launch.local"
    monkeypatch.setattr(f"{local}.ensure_environment", lambda *_: None)
    monkeypatch.setattr(f"{local}.ensure_default_model", lambda *_: default_model(settings))
    options = EngineOptions(
        model="random:opt-125m", dtype="float32", kv_cache_gib=0.5, extra=("--load-format", "auto")
    )
    with pytest.raises(LaunchError) as told, local_replicas(1, options, settings=settings):
        pass
    words = str(told.value).split()
    assert str(settings.models / "random-opt-125m") in words
    # The user's options come last, and win.
    assert words[words.index("--load-format") :][:4] == [*RANDOM_WEIGHTS, "--load-format", "auto"]


@pytest.mark.long
@pytest.mark.slow
def test_transformers_builds_models_of_these_sizes(tmp_path: Path) -> None:
    python = engine_python(load_settings())
    if not python.exists():
        pytest.skip("needs the engine's environment: `forebay setup`")
    for name in ARCHITECTURES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config_document(name)))
    command = [python, "-I", "-c", COUNT, *(tmp_path / name for name in ARCHITECTURES)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=400).stdout.split()
    kinds, counts = lines[::2], [round(int(count) / 1e6, 1) for count in lines[1::2]]
    assert kinds == [each.config["architectures"][0] for each in ARCHITECTURES.values()]
    assert counts == [each.parameters_m for each in ARCHITECTURES.values()]
