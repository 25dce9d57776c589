from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch.model import is_quantized, more_weights_gib
from forebay.engine.launch.spec import DEFAULT_WEIGHTS_GIB


def model(folder: Path, gib: float, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(int(gib * 2**30))
    return folder


@pytest.mark.parametrize(
    ("stored", "dtype", "gib"),
    [("bfloat16", "bfloat16", 4.0), ("bfloat16", "float32", 8.0), ("float32", "bfloat16", 2.0)],
)
def test_weights_take_what_their_number_type_takes(
    tmp_path: Path, stored: str, dtype: str, gib: float
) -> None:
    for key in ("dtype", "torch_dtype"):
        found = more_weights_gib(model(tmp_path, 4.0, **{key: stored}), dtype)
        assert found == pytest.approx(gib - DEFAULT_WEIGHTS_GIB)


def test_quantized_weights_stay_as_they_are(tmp_path: Path) -> None:
    quantized = model(tmp_path, 1.0, quantization_config={"bits": 4})
    assert is_quantized(quantized)
    assert more_weights_gib(quantized, "float32") == pytest.approx(1.0 - DEFAULT_WEIGHTS_GIB)


def test_a_model_without_a_number_type_counts_as_the_default(tmp_path: Path) -> None:
    assert not is_quantized(tmp_path)
    assert more_weights_gib(tmp_path, "bfloat16") == 0
    assert more_weights_gib(Path("owner/name"), "float32") == pytest.approx(DEFAULT_WEIGHTS_GIB)
    (tmp_path / "config.json").write_text("[1]")
    assert more_weights_gib(tmp_path, "bfloat16") == 0
