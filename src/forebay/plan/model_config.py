"""What a model's `config.json` says of its weights and its KV cache. The file is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.files import read_bytes
from forebay.plan.config_fields import MOST, MOST_LAYERS, Fields, type_bytes_of
from forebay.plan.layers import kind_of, sparse_layers, windows
from forebay.plan.quantization import only_experts, quantized_bytes

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        layers: Layers with a KV cache that keeps all tokens.
        window_layers: Layers that keep the last `window` tokens only.
        kv_bytes: KV cache per token and layer, in bytes, over all ranks of a replica.
        heads: Attention heads, which are split among the ranks.
        kv_heads: Heads of the KV cache, likewise; 0: a latent for all heads, which each rank holds whole.
        parameters: Weights in all.
        active_parameters: Weights that one token is multiplied with: without the experts that it passes over
            and without the input embedding.
        weight_bytes: Bytes that the weights take.
        pair_flops: Operations of attention per pair of tokens, over all layers.
        max_context: Tokens of a request at most; None: the file does not say.

    It is that of one rank until `over` says for how many.
    """

    layers: int
    window_layers: int
    window: int
    kv_bytes: float
    parameters: float
    active_parameters: float
    weight_bytes: float
    pair_flops: float
    max_context: int | None
    heads: int
    kv_heads: int

    def kv_cache_bytes(self, tokens: float) -> float:
        """KV cache of a request with so many tokens, in bytes."""
        kept = min(tokens, self.window) if self.window_layers else 0
        return self.kv_bytes * (self.layers * tokens + self.window_layers * kept)

    def over(self, ranks: int) -> ModelShape:
        """This model split among so many ranks (tensor parallelism): each holds its part of the KV cache's
        heads, but one at least, and a latent whole. Weights are taken as split evenly. Raises `SettingError`
        where heads cannot be split so."""
        if self.heads % ranks:
            raise SettingError(
                f"--tensor-parallel: expected a divisor of the model's {self.heads} attention heads, found "
                f"{ranks}"
            )
        if self.kv_heads and self.kv_heads % ranks and ranks % self.kv_heads:
            raise SettingError(
                f"--tensor-parallel: expected a divisor or a multiple of the model's {self.kv_heads} KV "
                f"heads, found {ranks}"
            )
        copies = max(1, ranks // self.kv_heads) if self.kv_heads else ranks
        return replace(self, kv_bytes=self.kv_bytes * copies)


def read_shape(path: Path, *, kv_type: str | None = None) -> ModelShape:
    """The shape of the model whose `config.json`, or whose folder, is at `path`.

    Where the weights lie beside it as safetensors, their size is taken from there. `kv_type`: the KV cache's
    number type, by default the model's. Raises `SettingError` for a file that is missing, larger than 1 MiB,
    no JSON object, out of range, or of a kind of model that is not known.
    """
    file = path / "config.json" if path.is_dir() else path
    data = read_bytes(file, MAX_CONFIG_BYTES, f"model: {file}")
    try:
        config: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"model: {file} is not JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(config, dict):
        raise SettingError(f"model: {file}: expected a JSON object, found another value")
    shape = shape_of(config, str(file), kv_type=kv_type)
    stored = _stored_bytes(file.parent)
    return replace(shape, weight_bytes=float(stored)) if stored else shape


def _stored_bytes(folder: Path) -> int:
    """Bytes of the weights in a folder: what their index says, else the sizes of the files; 0 for none.
    `consolidated*` holds the same weights once more, for another program."""
    try:
        index: Any = orjson.loads(read_bytes(folder / INDEX, MAX_INDEX_BYTES, f"model: {folder / INDEX}"))
        total = index["metadata"]["total_size"]
        if type(total) is int and total > 0:
            return total
    except (SettingError, orjson.JSONDecodeError, LookupError, TypeError):
        pass  # There is none, or it does not say.
    try:
        sizes = {each.name: each.stat().st_size for each in folder.glob("*.safetensors")}
    except OSError:
        return 0
    shards = [size for name, size in sizes.items() if not name.startswith("consolidated")]
    return sum(shards or sizes.values())


def shape_of(config: Mapping[str, Any], where: str, *, kv_type: str | None = None) -> ModelShape:
    """The shape that a config describes. Feed-forward layers are taken as gated, with three matrices."""
    text = config.get("text_config")
    found = Fields({**config, **text} if isinstance(text, dict) else config, where)
    hidden, layers = found.number("hidden_size"), found.number("num_hidden_layers", most=MOST_LAYERS)
    heads = found.number("num_attention_heads")
    kv_heads = found.number("num_key_value_heads", heads)
    size = found.number("head_dim", max(hidden // heads, 1))
    vocabulary = found.number("vocab_size")
    bytes_each = found.type_bytes()
    kv_each = bytes_each if kv_type is None else type_bytes_of(kv_type, "--kv-cache-type")
    latent = found.number("kv_lora_rank", 0)
    if latent:
        # One latent vector per token serves all heads (multi-head latent attention).
        rope, plain = found.number("qk_rope_head_dim", 64), found.number("qk_nope_head_dim", 128)
        value = found.number("v_head_dim", 128)
        rank = found.number("q_lora_rank", 0)
        query = hidden * rank + rank * heads * (plain + rope) if rank else hidden * heads * (plain + rope)
        attention = (
            query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
        )
        kv_values, pair = latent + rope, 2 * heads * (plain + rope + value)
    else:
        attention = 2 * hidden * heads * size + 2 * hidden * kv_heads * size
        kv_values, pair = 2 * kv_heads * size, 4 * heads * size
    windowed, window = windows(found, layers)
    dense, active = _feed_forward(found, hidden, layers)
    embedding = vocabulary * hidden
    tied = found.flag("tie_word_embeddings")
    parameters = layers * (attention + 2 * hidden) + dense + embedding * (1 if tied else 2) + hidden
    used = layers * attention + active + embedding
    quantized = quantized_bytes(found)
    if quantized is None:
        weights = parameters * bytes_each
    else:
        outer = embedding * (1 if tied else 2) + (layers * attention if only_experts(found) else 0)
        weights = (parameters - outer) * quantized + outer * bytes_each
    return ModelShape(
        layers=layers - windowed,
        window_layers=windowed,
        window=window,
        kv_bytes=kv_values * kv_each,
        parameters=float(parameters),
        active_parameters=float(used),
        weight_bytes=float(weights),
        pair_flops=float(layers * pair),
        max_context=_max_context(found),
        heads=heads,
        kv_heads=0 if latent else kv_heads,
    )


def _feed_forward(found: Fields, hidden: int, layers: int) -> tuple[int, int]:
    """Weights of all feed-forward layers, and those of them that one token is multiplied with."""
    inner = found.number("intermediate_size", 4 * hidden)
    experts = found.first(("num_local_experts", "num_experts", "n_routed_experts"), 0)
    if not experts:
        return layers * 3 * hidden * inner, layers * 3 * hidden * inner
    chosen = min(found.first(("num_experts_per_tok", "moe_top_k"), 2), experts)
    expert = 3 * hidden * found.number("moe_intermediate_size", inner)
    shared = found.number("n_shared_experts", 0) * expert
    shared += 3 * hidden * found.number("shared_expert_intermediate_size", 0)
    plain = 3 * hidden * inner
    if kind_of(found).startswith("llama4"):
        shared, plain = expert, 3 * hidden * found.number("intermediate_size_mlp", inner)
    sparse = sparse_layers(found, layers)
    router = hidden * experts
    rest = (layers - sparse) * plain
    return (
        rest + sparse * (experts * expert + shared + router),
        rest + sparse * (chosen * expert + shared + router),
    )


def _max_context(found: Fields) -> int | None:
    """Tokens of a request at most, with positions that are scaled (YaRN and linear ones)."""
    said = found.number("max_position_embeddings", 0)
    scaling = found.get("rope_scaling") or found.get("rope_parameters")
    if not said or not isinstance(scaling, dict):
        return said or None
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if (
        kind not in ("yarn", "linear", "dynamic")
        or not isinstance(factor, int | float)
        or not 1 <= factor <= MOST
    ):
        return said
    first: Any = scaling.get("original_max_position_embeddings") if kind == "yarn" else said
    known = isinstance(first, int) and 0 < first <= MOST
    return max(said, int((first if known else said) * factor))
