"""The engine's own code has the same sizes and defaults."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.planning import model_configs as models
from tools.model_defaults import installed_defaults, text_of

import forebay.planning
from forebay.engine.launch.environment import engine_python
from forebay.planning.defaults import DATA, Fields, text_config
from forebay.planning.kv_cache import MAMBA_2, recurrent_of
from forebay.planning.layers import KINDS, layer_counts
from forebay.planning.model_config import ModelShape, shape_of
from forebay.settings import load_settings

ALIKE = ("ministral3", "mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2")
CPU_BLOCK = 128
STEP_TOKENS = 2048
TIMEOUT_S = 1000
DEEPSEEK_V3 = {
    name: value for name, value in models.DEEPSEEK_V3_2.items() if not name.startswith(("index_", "rope_"))
} | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    # A model with experts first: vLLM sets up the groups of processes for the first one.
    "gpt-oss-20b": (models.GPT_OSS_20B, 8192),
    "mistral-7b": (models.MISTRAL_7B, 8192),
    "mistral-7b, short": (models.MISTRAL_7B, 2048),
    "mistral-7b, linear": (models.MISTRAL_7B | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
    "gemma-2-9b": (models.GEMMA_2_9B, 8192),
    "gemma-3-4b": ({**models.GEMMA_3_4B["text_config"], "architectures": ["Gemma3ForCausalLM"]}, 8192),
    "gemma-4-e4b": (models.GEMMA_4_E4B, 8192),
    "gemma-4-26b": (models.GEMMA_4_26B, 8192),
    "command-r-7b": (models.COMMAND_R_7B, 8192),
    "qwen3-next": (models.QWEN_3_NEXT_80B, 8192),
    "granite-4-small": (models.GRANITE_4_SMALL, 8192),
    "deepseek-v3": (DEEPSEEK_V3, 8192),
}


@pytest.fixture(scope="module")
def python() -> Path:
    found = engine_python(load_settings())
    if not found.exists():
        pytest.skip("needs the engine's environment: `forebay setup`")
    return found


@pytest.mark.vllm
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.slow
def test_vllm_computes_the_same_sizes(python: Path) -> None:
    """On a CPU, vLLM has blocks of 128 tokens; recurrent states are kept in 32 bits."""
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
        shape = _with_states_in_32_bits(shape_of(_unquantized(config), name), config)
        assert vllm["request_bytes"] == shape.reserved_bytes(context, STEP_TOKENS, CPU_BLOCK), name
        assert vllm["max_context"] == shape.max_context, name
        assert vllm["parameters"] == pytest.approx(shape.parameters, rel=0.005), name


def _with_states_in_32_bits(shape: ModelShape, config: dict[str, Any]) -> ModelShape:
    if not any(one.state_bytes for one in shape.caches):
        return shape
    more = 2 * recurrent_of(Fields(text_config(config), "config.json"), config["model_type"]).state
    caches = [
        replace(one, state_bytes=one.state_bytes + more) if one.state_bytes else one for one in shape.caches
    ]
    return replace(shape, caches=tuple(caches))


def _unquantized(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "quantization_config"}


@pytest.mark.slow
def test_defaults_are_those_of_the_installed_transformers(python: Path) -> None:
    """After an update of the engine: `make model-defaults`."""
    stored = Path(forebay.planning.__file__).with_name(DATA).read_text()
    assert stored == text_of(installed_defaults(python))


PATTERNS = """
import json, sys
from transformers import CONFIG_MAPPING
found = []
for kind, fields in json.load(sys.stdin):
    layers = CONFIG_MAPPING[kind](**fields).layer_types
    found.append([one.startswith(("sliding", "chunked", "linear")) for one in layers].count(True))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_layers_without_a_list_of_types_are_those_of_transformers(python: Path) -> None:
    kinds = sorted(kind for kind, special in KINDS.items() if special is not KINDS["llama"])
    # These have no list of types in transformers: all layers have a window or none has.
    kinds = [kind for kind in kinds if kind not in ALIKE and kind not in MAMBA_2]
    cases = [(kind, {"num_hidden_layers": layers}) for kind in kinds for layers in (5, 6, 12, 31)]
    cases += [("qwen2", {"num_hidden_layers": 9, "use_sliding_window": True, "max_window_layers": 4})]
    cases += [("exaone4", {"num_hidden_layers": 10, "sliding_window_pattern": 3, "sliding_window": 64})]
    ended = subprocess.run(
        [python, "-I", "-c", PATTERNS],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    expected = json.loads(ended.stdout.splitlines()[-1])
    for (kind, fields), special in zip(cases, expected, strict=True):
        found = layer_counts(
            Fields(text_config({"model_type": kind, **fields}), kind), fields["num_hidden_layers"]
        )
        assert found.windowed + found.recurrent == special, (kind, fields)
