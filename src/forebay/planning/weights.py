"""The number of weights of a text model, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.planning.defaults import MAX_LAYERS, Fields, vision_config
from forebay.planning.kv_cache import recurrent_of
from forebay.planning.layers import LayerCounts, block_types, index_layers, kind_of, sparse_layers

UNGATED = frozenset(
    ("apertus", "arcee", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "jais2", "nemotron",
     "opt", "persimmon", "phi", "starcoder2")
)  # fmt: skip
"""Types whose feed-forward layers have two matrices, not three."""
LEARNED_POSITIONS = frozenset(("gpt2", "gpt_bigcode", "opt"))
ALWAYS_TIED = frozenset(("bloom", "gpt2", "gpt_bigcode", "opt"))
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_top_k", "moe_topk", "moe_k", "top_k_experts")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
INNER = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")


@dataclass(frozen=True, slots=True)
class Attention:
    """`kv_heads` 0: one latent serves all heads. `kv_weights`: of keys and values. `kv_values`: numbers of a
    token in the KV cache. `pair_flops`: for a pair of tokens."""

    heads: int
    kv_heads: int
    weights: int
    kv_weights: int
    kv_values: int
    pair_flops: int


@dataclass(frozen=True, slots=True)
class Weights:
    """`active`: used for one token. `unquantized`: the embeddings. `attention`: of all layers."""

    total: int
    active: int
    unquantized: int
    attention: int


def attention_of(found: Fields, *, windowed: bool = False) -> Attention:
    """`windowed` matters for models whose layers differ (Gemma 4)."""
    kind, hidden, heads = kind_of(found), found.number("hidden_size"), found.number("num_attention_heads")
    latent = found.number("kv_lora_rank", 0)
    if latent:
        # One latent vector per token serves all heads (multi-head latent attention).
        rope, plain = found.number("qk_rope_head_dim", 64), found.number("qk_nope_head_dim", 128)
        value, rank = found.number("v_head_dim", 128), found.number("q_lora_rank", 0)
        query = hidden * rank + rank * heads * (plain + rope) if rank else hidden * heads * (plain + rope)
        weights = query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
        return Attention(
            heads, 0, weights, hidden * (latent + rope), latent + rope, 2 * heads * (plain + rope + value)
        )
    kv_heads = _kv_heads(found, kind, heads)
    size = found.number("head_dim", max(hidden // heads, 1))
    if kind == "gemma4_text" and not windowed:
        size = found.number("global_head_dim", 512)
        if found.flag("attention_k_eq_v"):
            kv_heads = found.number("num_global_key_value_heads", kv_heads)
    # Qwen3-Next: the query has a gate of the same size.
    queries = 2 if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text") else 1
    kv_weights = 2 * hidden * kv_heads * size
    weights = (queries + 1) * hidden * heads * size + kv_weights
    return Attention(heads, kv_heads, weights, kv_weights, 2 * kv_heads * size, 4 * heads * size)


def _kv_heads(found: Fields, kind: str, heads: int) -> int:
    if kind == "falcon":
        if found.flag("new_decoder_architecture"):
            return found.number("num_kv_heads", heads)
        return 1 if found.flag("multi_query") else heads
    if kind == "gpt_bigcode":
        return 1 if found.get("multi_query") is not False else heads
    return found.number("num_key_value_heads", heads)


def weights_of(found: Fields, counts: LayerCounts, full: Attention, windowed: Attention) -> Weights:
    kind, hidden, vocabulary = kind_of(found), found.number("hidden_size"), found.number("vocab_size")
    layers = found.number("num_hidden_layers")
    mixing = (
        counts.full * full.weights
        + counts.windowed * windowed.weights
        - counts.shared_full * full.kv_weights
        - counts.shared_windowed * windowed.kv_weights
        + (counts.recurrent * recurrent_of(found, kind).weights if counts.recurrent else 0)
        + _indexers(found, layers, hidden)
    )
    dense, active = _feed_forward(found, kind, hidden, layers)
    if kind == "gemma4_text":
        mixing += _layer_inputs(found, hidden, layers)
        if found.flag("use_double_wide_mlp"):
            wider = (
                (counts.shared_full + counts.shared_windowed) * 3 * hidden * found.number("intermediate_size")
            )
            dense, active = dense + wider, active + wider
    embedding = vocabulary * hidden
    tied = kind in ALWAYS_TIED or found.flag("tie_word_embeddings")
    outer = embedding if tied else 2 * embedding
    if kind in LEARNED_POSITIONS:
        outer += found.number("max_position_embeddings", 1024) * hidden
    if kind == "gemma4_text":
        each = found.number("hidden_size_per_layer_input", 0)
        outer += layers * each * found.number("vocab_size_per_layer_input", vocabulary)
    norms = (1 if kind == "nemotron_h" else 2) * layers * hidden + hidden
    return Weights(mixing + dense + outer + norms, mixing + active + embedding, outer, mixing)


def index_bytes_of(found: Fields, layers: int, value_bytes: float) -> float:
    """Bytes per token, without the latents: 8-bit keys, with four bytes of scale for each 128.

    Latents in 8 bits have scales too; their rotary part has 16 bits.
    """
    indexers = index_layers(found, layers)
    if not indexers:
        return 0.0
    size = found.number("index_head_dim", 128)
    found_bytes = indexers * (size + 4.0 * -(-size // 128))
    if value_bytes == 1:
        found_bytes += layers * (
            4.0 * found.number("kv_lora_rank") / 128 + found.number("qk_rope_head_dim", 64)
        )
    return found_bytes


def _layer_inputs(found: Fields, hidden: int, layers: int) -> int:
    return 3 * layers * hidden * found.number("hidden_size_per_layer_input", 0)


def _indexers(found: Fields, layers: int, hidden: int) -> int:
    size, heads = found.number("index_head_dim", 128), found.number("index_n_heads", 64)
    query = found.number("q_lora_rank", hidden)
    return index_layers(found, layers) * (query * heads * size + hidden * size + hidden * heads)


def _feed_forward(found: Fields, kind: str, hidden: int, layers: int) -> tuple[int, int]:
    if kind == "nemotron_h":
        return _nemotron_feed_forward(found, hidden)
    matrices = 2 if kind in UNGATED else 3
    inner = found.first(INNER, 4 * hidden)
    experts = found.first(EXPERTS, 0)
    if kind == "granitemoehybrid" and not experts:
        inner = found.number("shared_intermediate_size")
    if experts < 2:
        return layers * matrices * hidden * inner, layers * matrices * hidden * inner
    chosen = min(found.first(CHOSEN, 2), experts)
    expert = matrices * hidden * found.first(("moe_intermediate_size",), inner)
    shared = found.first(SHARED, 0) * expert
    shared += (
        matrices
        * hidden
        * (found.number("shared_expert_intermediate_size", 0) + found.number("shared_intermediate_size", 0))
    )
    plain = matrices * hidden * inner
    if kind == "gemma4_text":
        shared = plain
    if kind == "llama4_text":
        shared, plain = expert, matrices * hidden * found.number("intermediate_size_mlp", inner)
    if kind == "hunyuan_v1_moe":
        shared = expert
    sparse = sparse_layers(found, layers)
    router = hidden * experts
    rest = (layers - sparse) * plain
    return (
        rest + sparse * (experts * expert + shared + router),
        rest + sparse * (chosen * expert + shared + router),
    )


def _nemotron_feed_forward(found: Fields, hidden: int) -> tuple[int, int]:
    blocks = block_types(found)
    experts = found.first(EXPERTS, 0)
    chosen = min(found.first(CHOSEN, 0), experts)
    plain = blocks.count("mlp") * 2 * hidden * found.number("intermediate_size")
    # Experts may work on a smaller vector, with a projection to it and back.
    latent = found.number("moe_latent_size", 0)
    expert = 2 * (latent or hidden) * found.number("moe_intermediate_size")
    shared = found.number("n_shared_experts", 0) * 2 * hidden
    shared *= found.number("moe_shared_expert_intermediate_size")
    always = shared + hidden * experts + 2 * hidden * latent
    sparse = blocks.count("moe")
    return plain + sparse * (experts * expert + always), plain + sparse * (chosen * expert + always)


GATED = ("qwen2_5_vl", "qwen2_5_omni", "pixtral", "mistral3")
"""Types whose image encoder has three matrices in a feed-forward layer."""


def image_weights(config: Mapping[str, Any], where: str) -> int:
    """A vision transformer and its merger, without embeddings (less than 1 %); 0 without one."""
    values = vision_config(config)
    if not values:
        return 0
    found = Fields(values, f"{where}: vision_config")
    layers = found.number("depth" if "depth" in values else "num_hidden_layers", 0, most=MAX_LAYERS)
    # Qwen2-VL calls the encoder's size embed_dim, and the text model's hidden_size.
    size = found.number("embed_dim" if "embed_dim" in values else "hidden_size", 0)
    inner = found.number("intermediate_size", 4 * size)
    kinds = (str(config.get("model_type")), str(values.get("model_type")))
    merged, out = size * found.number("spatial_merge_size", 1) ** 2, found.number("out_hidden_size", size)
    if kinds[0].startswith("glm4"):
        # GLM-4V: the feed-forward layer is as wide as the output, and the merger has one of its own.
        return layers * (4 * size * size + 3 * size * out) + merged * out + out * out + 3 * out * inner
    matrices = 3 if any(kind.startswith(GATED) for kind in kinds) else 2
    blocks = layers * (4 * size * size + matrices * size * inner)
    stacked = found.get("deepstack_visual_indexes")
    mergers = 1 + (len(stacked) if isinstance(stacked, list) else 0)
    return blocks + mergers * (merged * merged + merged * out)
