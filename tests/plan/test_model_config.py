"""What `config.json` says: sizes that are known from the models' own documents, and bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.plan.model_config import read_shape, shape_of

LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    **LLAMA,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}
GEMMA_3_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_attention_heads": 8,
    "num_hidden_layers": 34,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}


def test_llama_8b() -> None:
    shape = shape_of(LLAMA, "llama")
    assert shape.parameters == pytest.approx(8.030e9, rel=1e-3)
    assert shape.weight_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert shape.kv_cache_bytes(1) == 128 * 1024
    assert shape.kv_cache_bytes(8192) == 2**30


def test_mixture_of_experts() -> None:
    shape = shape_of(MIXTRAL, "mixtral")
    assert shape.parameters == pytest.approx(46.7e9, rel=0.005)
    assert shape.active_parameters == pytest.approx(12.9e9, rel=0.02)


def test_latent_attention() -> None:
    shape = shape_of(DEEPSEEK_V3, "deepseek")
    assert shape.parameters == pytest.approx(671e9, rel=0.01)
    assert shape.active_parameters == pytest.approx(37e9, rel=0.03)
    assert shape.kv_cache_bytes(1) == 61 * 576 * 2
    assert shape.weight_bytes == pytest.approx(689e9, rel=0.03)


def test_sliding_windows() -> None:
    shape = shape_of({"text_config": GEMMA_3_TEXT, "torch_dtype": "bfloat16"}, "gemma")
    assert (shape.layers, shape.window_layers) == (5, 29)
    each = 2 * 4 * 256 * 2
    assert shape.kv_cache_bytes(8192) == each * (5 * 8192 + 29 * 1024)
    assert shape.kv_cache_bytes(1000) == each * 34 * 1000
    named = {**GEMMA_3_TEXT, "layer_types": ["sliding_attention"] * 33 + ["full_attention"]}
    assert shape_of(named, "gemma").window_layers == 33


def test_a_smaller_type_of_the_kv_cache() -> None:
    assert shape_of(LLAMA, "llama", kv_type="fp8").kv_cache_bytes(1) == 64 * 1024


def test_weights_on_the_disk_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(orjson.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert read_shape(tmp_path).weight_bytes == 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"torch_dtype": "int3"}, "dtype"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 99}}, "bits"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        shape_of({**LLAMA, **change}, "config.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=r"config\.json"):
        read_shape(path)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(SettingError, match="larger"):
        read_shape(tmp_path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(
    {*LLAMA, *MIXTRAL, *DEEPSEEK_V3, *GEMMA_3_TEXT, "layer_types", "text_config", "attention_chunk_size"}
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_any_config_gives_a_shape_or_a_setting_error(change: dict[str, Any]) -> None:
    try:
        shape = shape_of({**LLAMA, **change}, "config.json")
    except SettingError:
        return
    assert shape.kv_cache_bytes(10) > 0
    assert shape.weight_bytes > 0
    assert shape.active_parameters > 0
