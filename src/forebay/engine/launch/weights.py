"""What a model's directory says of its weights. Every answer is a guess where the directory does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from forebay.engine.launch.spec import DEFAULT_WEIGHTS_GIB, GIB

MAX_CONFIG_BYTES = 1 << 20
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}


def is_quantized(model: Path) -> bool:
    """Whether the weights are quantized: the number type is then theirs to choose."""
    return bool(_config(model).get("quantization_config"))


def more_weights_gib(model: Path, dtype: str) -> float:
    """How much memory the weights take in `dtype` beyond the default model's in bfloat16; at least 0.

    Those of a model that is not on this disk count as the default model's.
    """
    config = _config(model)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    grows = 1.0 if is_quantized(model) else BYTES.get(dtype, 2) / BYTES.get(stored, 2)
    try:
        size_gib = sum(file.stat().st_size for file in model.glob("*.safetensors")) / GIB
    except OSError:
        size_gib = 0.0
    return max(0.0, (size_gib or DEFAULT_WEIGHTS_GIB) * grows - DEFAULT_WEIGHTS_GIB)


def _config(model: Path) -> dict[str, Any]:
    path = model / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        config = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
