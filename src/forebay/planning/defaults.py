"""Fields of a model's config, with transformers' defaults for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from forebay.errors import SettingError

MAX_NUMBER = 100_000_000
MAX_LAYERS = 2000
TYPE_BYTES = {
    "float32": 4.0,
    "float": 4.0,
    "float16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
}
TYPE_ALIASES = {"fp8": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class Fields:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def number(self, name: str, default: int | None = None, most: int = MAX_NUMBER) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        least = 0 if default == 0 else 1
        if type(value) is not int or not least <= value <= most:
            raise SettingError(
                f"model: {self.where}: {name}: expected a whole number from {least} to {most}, found "
                f"{shown(value)}"
            )
        return value

    def first(self, names: tuple[str, ...], default: int) -> int:
        """`default` for 0 or none. Of a list with a number per layer, the largest counts."""
        for name in names:
            value = self._values.get(name)
            if isinstance(value, list) and value:
                if len(value) > MAX_LAYERS or any(
                    type(one) is not int or not 0 <= one <= MAX_NUMBER for one in value
                ):
                    raise self.wrong(name, f"at most {MAX_LAYERS} whole numbers from 0 to {MAX_NUMBER}")
                return max(value) or default
            if value is not None and value != []:
                return self.number(name, 0) or default
        return default

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def stored_type_bytes(self) -> float:
        named = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        return type_bytes_of(named, f"model: {self.where}: dtype")

    def type_bytes(self) -> float:
        """Bytes per number in memory: vLLM loads 32-bit models with 16 bits."""
        return min(self.stored_type_bytes(), 2.0)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def wrong(self, name: str, expected: str) -> SettingError:
        return SettingError(
            f"model: {self.where}: {name}: expected {expected}, found {shown(self._values.get(name))}"
        )


def type_bytes_of(named: object, called: str) -> float:
    name = str(named)[:40].removeprefix("torch.")
    name = TYPE_ALIASES.get(name, name)
    if name not in TYPE_BYTES:
        known = ", ".join((*TYPE_ALIASES, *TYPE_BYTES))
        raise SettingError(f"{called}: expected one of {known}; found {name!r}")
    return TYPE_BYTES[name]


def shown(value: object) -> str:
    return (
        "nothing" if value is None else repr(value)[:60] if not isinstance(value, list | dict) else "a list"
    )


DATA = "model_defaults.json"
CONFIG_FIELDS = (
    "attention_chunk_size", "attention_k_eq_v", "conv_kernel", "decoder_sparse_step", "ffn_dim",
    "ffn_hidden_size", "first_k_dense_replace", "full_attention_interval", "head_dim", "hidden_size",
    "hidden_size_per_layer_input", "index_head_dim", "index_n_heads", "index_skip_topk_offset",
    "index_topk_freq", "interleave_moe_layer_step", "intermediate_size", "intermediate_size_mlp",
    "kv_lora_rank", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_value_head_dim", "mamba_d_conv", "mamba_d_state", "mamba_expand",
    "mamba_head_dim", "mamba_n_groups", "mamba_n_heads", "mamba_num_heads", "mamba_ssm_cache_dtype",
    "max_position_embeddings", "max_window_layers", "moe_intermediate_size", "moe_k", "moe_latent_size",
    "moe_layer_freq", "moe_layer_interval", "moe_layer_start_index", "moe_num_experts",
    "moe_num_shared_experts", "moe_shared_expert_intermediate_size", "moe_top_k", "moe_topk", "multi_query",
    "n_groups", "n_inner", "n_routed_experts", "n_shared_experts", "new_decoder_architecture",
    "no_rope_layer_interval", "num_attention_heads", "num_experts", "num_experts_per_tok",
    "num_hidden_layers", "num_key_value_heads", "num_kv_heads", "num_kv_shared_layers", "num_local_experts",
    "num_shared_experts", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "shared_expert_intermediate_size", "shared_intermediate_size", "sliding_window",
    "sliding_window_pattern", "ssm_state_size", "tie_word_embeddings", "top_k_experts",
    "use_double_wide_mlp", "use_sliding_window", "v_head_dim", "vocab_size", "vocab_size_per_layer_input",
)  # fmt: skip
VISION_FIELDS = (
    "depth", "embed_dim", "hidden_size", "intermediate_size", "num_hidden_layers", "out_hidden_size",
    "spatial_merge_size",
)  # fmt: skip
NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
SHARED = ("dtype", "torch_dtype", "quantization_config")


@cache
def known_defaults() -> Mapping[str, Any]:
    found: dict[str, Any] = orjson.loads(files("forebay.planning").joinpath(DATA).read_bytes())["models"]
    return found


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's fields, under this package's names.

    An explicit null stays: transformers does not replace it by the default.
    """
    kind, values, shared = _type_of(config), config, dict[str, Any]()
    for _ in NESTED:
        inner = next((values[name] for name in NESTED if isinstance(values.get(name), dict)), None)
        if inner is None:
            break
        shared |= {name: values[name] for name in SHARED if values.get(name) is not None}
        kind, values = _type_of(inner) or _text_of(kind) or kind, inner
    if "text_config" not in config:
        # Qwen2.5-VL and others once had all fields at the top.
        kind = _text_of(kind) or kind
    known = known_defaults().get(kind or "", {})
    names, defaults = known.get("names", {}), known.get("defaults", {})
    given = {names.get(name, name): value for name, value in values.items()}
    found = {**defaults, **shared, **given, "model_type": kind or config.get("model_type")}
    if values is not config:
        found["tie_word_embeddings"] = _tied(config, given, defaults)
    return found


def _tied(config: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """The outer config of a multimodal model decides, as in vLLM. Without the field, both defaults must
    agree (Mistral 3)."""
    for values in (config, given):
        if values.get("tie_word_embeddings") is not None:
            return values["tie_word_embeddings"] is True
    outer = known_defaults().get(_type_of(config) or "", {}).get("defaults", {})
    return defaults.get("tie_word_embeddings") is True and outer.get("tie_word_embeddings") is not False


def vision_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Empty without an image encoder."""
    thinker = config.get("thinker_config")
    outer = thinker if isinstance(thinker, dict) else config
    given = outer.get("vision_config")
    if not isinstance(given, dict):
        return {}
    known: dict[str, Any] = known_defaults().get(_type_of(outer) or "", {}).get("vision", {})
    return {**known, **given}


def _type_of(config: Mapping[str, Any]) -> str | None:
    found = config.get("model_type")
    return found if isinstance(found, str) else None


def _text_of(kind: str | None) -> str | None:
    found: str | None = known_defaults().get(kind or "", {}).get("text")
    return found
