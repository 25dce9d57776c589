"""The engine's own code has the same sizes and defaults."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.plan import model_configs as models
from tools.model_defaults import installed_defaults, text_of

import forebay.plan
from forebay.engine.launch.environment import engine_python
from forebay.plan.defaults import DATA
from forebay.plan.model_config import shape_of
from forebay.settings import load_settings

CPU_BLOCK = 128
STEP_TOKENS = 2048
TIMEOUT_S = 500
DEEPSEEK_V3 = {
    name: value for name, value in models.DEEPSEEK_V3_2.items() if not name.startswith(("index_", "rope_"))
} | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    # A model with experts first: vLLM sets up the groups of processes for the first one.
    "gpt-oss-20b": (models.GPT_OSS_20B, 8192),
    "mistral-7b": (models.MISTRAL_7B, 8192),
    "mistral-7b, short": (models.MISTRAL_7B, 2048),
    "gemma-2-9b": (models.GEMMA_2_9B, 8192),
    "gemma-3-4b": ({**models.GEMMA_3_4B["text_config"], "architectures": ["Gemma3ForCausalLM"]}, 8192),
    "command-r-7b": (models.COMMAND_R_7B, 8192),
    "qwen3-next": ({**models.QWEN_3_NEXT_80B, "mamba_ssm_dtype": "float32"}, 8192),
    "deepseek-v3": (DEEPSEEK_V3, 8192),
}


@pytest.fixture(scope="module")
def python() -> Path:
    found = engine_python(load_settings())
    if not found.exists():
        pytest.skip("needs the engine's environment: `forebay setup`")
    return found


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_sizes_models_the_same_way(python: Path) -> None:
    """On a CPU, vLLM has blocks of 128 tokens and keeps the states of Gated DeltaNet in 32 bits."""
    asked = [
        {"config": _unquantized(config), "context": context, "step_tokens": STEP_TOKENS}
        for config, context in CASES.values()
    ]
    script = Path(__file__).with_name("vllm_sizes.py")
    ended = subprocess.run(
        [python, "-I", script],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    for (name, (config, context)), vllm in zip(CASES.items(), found, strict=True):
        shape = shape_of(_unquantized(config), name)
        assert vllm["request_bytes"] == shape.reserved_bytes(context, STEP_TOKENS, CPU_BLOCK), name
        assert vllm["parameters"] == pytest.approx(shape.parameters, rel=0.005), name


def _unquantized(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "quantization_config"}


@pytest.mark.slow
def test_defaults_are_those_of_the_installed_transformers(python: Path) -> None:
    """After an update of the engine: `make model-defaults`."""
    stored = Path(forebay.plan.__file__).with_name(DATA).read_text()
    assert stored == text_of(installed_defaults(python))
