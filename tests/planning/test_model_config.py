"""`config.json`: sizes known from the models' own documents, and bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning import model_configs

from forebay.errors import SettingError
from forebay.planning.defaults import CONFIG_FIELDS
from forebay.planning.kv_cache import CachedLayers
from forebay.planning.model_config import read_shape, shape_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
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
    "max_position_embeddings": 163840,
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
    "model_type": "gemma3_text",
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


LLAMA_4_MAVERICK = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 202048,
    "num_local_experts": 128,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
    "no_rope_layers": [],
    "tie_word_embeddings": False,
}
QWEN_2_57B = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "sliding_window": 65536,
    "use_sliding_window": False,
    "vocab_size": 151936,
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
    each = 2 * 4 * 256 * 2
    assert shape.caches == (CachedLayers(5, each, 4), CachedLayers(29, each, 4, 1024))
    assert shape.kv_cache_bytes(8192) == each * (5 * 8192 + 29 * 1024)
    assert shape.kv_cache_bytes(1000) == each * 34 * 1000
    named = {**GEMMA_3_TEXT, "layer_types": ["sliding_attention"] * 33 + ["full_attention"]}
    assert [one.layers for one in shape_of(named, "gemma").caches] == [1, 33]


def layers(config: dict[str, Any]) -> tuple[int, int, int]:
    """Layers that keep all tokens, those with a window, and the window."""
    caches = shape_of(config, "config.json").caches
    full = sum(one.layers for one in caches if not one.window)
    return full, sum(one.layers for one in caches if one.window), max(one.window for one in caches)


def test_implicit_sliding_windows() -> None:
    plain = {name: value for name, value in GEMMA_3_TEXT.items() if "sliding" not in name}
    assert layers(plain) == (5, 29, 4096)
    assert layers({**plain, "model_type": "gemma2", "num_hidden_layers": 43}) == (21, 22, 4096)
    mistral = {**LLAMA, "model_type": "mistral"}
    assert layers(mistral) == (0, 32, 4096), "transformers' default"
    assert layers({**mistral, "sliding_window": None}) == (32, 0, 0)
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 20}
    assert layers(qwen) == (32, 0, 0)
    assert layers({**qwen, "use_sliding_window": True}) == (20, 12, 4096)
    exaone = {**LLAMA, "model_type": "exaone4", "sliding_window": 4096}
    assert layers(exaone) == layers({**exaone, "sliding_window_pattern": "LLLG"}) == (8, 24, 4096)
    assert layers({**exaone, "sliding_window": None}) == (32, 0, 0)


def test_chunks_and_interleaved_experts() -> None:
    """Llama 4 Maverick: 400 billion parameters, 17 active; full attention in every fourth layer."""
    shape = shape_of(LLAMA_4_MAVERICK, "llama 4")
    assert shape.parameters == pytest.approx(400e9, rel=0.01)
    assert shape.active_parameters == pytest.approx(17e9, rel=0.2)
    assert layers(LLAMA_4_MAVERICK) == (12, 36, 8192)
    assert layers({**LLAMA_4_MAVERICK, "no_rope_layers": [1, 0] * 24}) == (24, 24, 8192)
    with pytest.raises(SettingError, match="no_rope_layers"):
        shape_of({**LLAMA_4_MAVERICK, "no_rope_layers": [1]}, "llama 4")


def test_which_layers_have_experts() -> None:
    every = shape_of(QWEN_2_57B, "qwen")
    assert every.parameters == pytest.approx(57.4e9, rel=0.01)
    experts = 28 * (64 * 2560 + 20480) * 3 * 3584 + 28 * 3584 * 64
    second = shape_of({**QWEN_2_57B, "decoder_sparse_step": 2}, "qwen")
    assert every.parameters - second.parameters == experts / 2 - 14 * 3 * 3584 * 18944
    assert shape_of({**QWEN_2_57B, "mlp_only_layers": list(range(1, 28, 2))}, "qwen") == shape_of(
        {**QWEN_2_57B, "moe_layer_freq": [1, 0] * 14}, "qwen"
    )
    third = {**DEEPSEEK_V3, "num_hidden_layers": 7, "first_k_dense_replace": 1, "moe_layer_freq": 3}
    # Layers 3 and 6.
    dense, sparse = 3 * 7168 * 18432, 257 * 3 * 7168 * 2048 + 7168 * 256
    none = shape_of({**third, "first_k_dense_replace": 7}, "deepseek").parameters
    assert shape_of(third, "deepseek").parameters - none == 2 * (sparse - dense)


@pytest.mark.parametrize("kind", ["jamba", "falcon_h1", "gemma3n", None, 3, []])
def test_a_model_with_layers_that_are_not_known_is_refused(kind: object) -> None:
    with pytest.raises(SettingError, match=r"model_type: expected one of .*does not know the layers"):
        shape_of({**LLAMA, "model_type": kind}, "config.json")


def test_bits_of_compressed_tensors() -> None:
    def bytes_of(*bits: int | None) -> float:
        groups = {
            str(at): {"weights": None if one is None else {"num_bits": one}} for at, one in enumerate(bits)
        }
        config = {"quant_method": "compressed-tensors", "config_groups": groups}
        return shape_of({**LLAMA, "quantization_config": config}, "llama").weight_bytes

    outer = 2 * 128256 * 4096
    inner = shape_of(LLAMA, "llama").parameters - outer
    assert bytes_of(4) == inner * (0.5 + 2 / 128) + outer * 2
    assert bytes_of(8) == bytes_of(4, 8) == inner * (1 + 2 / 128) + outer * 2
    assert bytes_of(None) == shape_of(LLAMA, "llama").weight_bytes
    with pytest.raises(SettingError, match="config_groups"):
        shape_of({**LLAMA, "quantization_config": {"quant_method": "compressed-tensors"}}, "llama")


@pytest.mark.parametrize(
    ("scaling", "most"),
    [
        (None, 4096),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "yarn", "factor": 4}, 4096),
        ({"rope_type": "dynamic", "factor": 1.5}, 6144),
        ({"rope_type": "longrope", "factor": 4.0}, 4096),
        ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "yarn", "factor": "many"}, 4096),
    ],
)
def test_the_longest_request(scaling: object, most: int) -> None:
    config = {**LLAMA, "max_position_embeddings": 4096, "rope_scaling": scaling}
    assert shape_of(config, "llama").max_context == most


@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 10))
def test_each_rank_holds_its_heads_and_one_at_least(group: int, some: int, ranks: int) -> None:
    heads, cards = group * 2**some, 2**ranks
    config = {**LLAMA, "num_attention_heads": heads * 4, "num_key_value_heads": heads, "head_dim": 64}
    shape = shape_of(config, "llama")
    try:
        split = shape.over(cards)
    except SettingError:
        assert heads * 4 % cards or (heads % cards and cards % heads)
        return
    per_rank = split.kv_cache_bytes(1) / cards
    assert per_rank == 32 * 2 * 64 * 2 * max(1, heads // cards)


def test_a_smaller_type_of_the_kv_cache() -> None:
    assert shape_of(LLAMA, "llama", kv_type="fp8").kv_cache_bytes(1) == 64 * 1024


def test_weights_on_the_disk_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(orjson.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert read_shape(tmp_path).weight_bytes == 1000


def test_the_index_gives_the_size_of_weights_without_a_second_copy(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(orjson.dumps(LLAMA))
    (tmp_path / "model-1-of-1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(900))
    assert read_shape(tmp_path).weight_bytes == 1000
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(orjson.dumps({"metadata": {"total_size": 990}}))
    assert read_shape(tmp_path).weight_bytes == 990
    for bad in (b"", b"[]", b'{"metadata": {"total_size": "many"}}', b'{"metadata": 1}'):
        index.write_bytes(bad)
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
    with pytest.raises(SettingError, match=r"found no .*nowhere; download it first"):
        read_shape(tmp_path / "nowhere")
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
PUBLISHED = [config for _, config in sorted(model_configs.CONFIGS.items())]
FIELDS = sorted(
    {
        *LLAMA,
        *MIXTRAL,
        *DEEPSEEK_V3,
        *GEMMA_3_TEXT,
        *LLAMA_4_MAVERICK,
        *QWEN_2_57B,
        *CONFIG_FIELDS,
        "hybrid_override_pattern",
        "indexer_types",
        "mlp_layer_types",
        "rope_scaling",
        "layer_types",
        "text_config",
        "vision_config",
        "attention_chunk_size",
    }
)


@given(
    st.sampled_from([LLAMA, DEEPSEEK_V3, GEMMA_3_TEXT, LLAMA_4_MAVERICK, QWEN_2_57B, *PUBLISHED]),
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4),
)
def test_any_config_gives_a_shape_or_a_setting_error(config: dict[str, Any], change: dict[str, Any]) -> None:
    try:
        shape = shape_of({**config, **change}, "config.json")
    except SettingError:
        return
    assert shape.kv_cache_bytes(10) > 0
    assert shape.reserved_bytes(10, 2048) > 0
    assert shape.weight_bytes > 0
    assert shape.active_parameters > 0
