"""Sizes of a model's weights and KV cache, from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.files import read_bytes
from forebay.planning.defaults import MAX_LAYERS, MAX_NUMBER, Fields, shown, text_config, type_bytes_of
from forebay.planning.kv_cache import BLOCK_TOKENS, CachedLayers, reserved_bytes, state_bytes_of, states_of
from forebay.planning.layers import kind_of, layer_counts
from forebay.planning.weights import attention_of, image_weights, index_bytes_of, weights_of

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes on one rank, or over all ranks after `over`.

    `active_parameters`: used for one token, without idle experts and the input embedding. `pair_flops`:
    attention for a pair of tokens, over all layers.
    """

    caches: tuple[CachedLayers, ...]
    parameters: float
    active_parameters: float
    weight_bytes: float
    pair_flops: float
    max_context: int | None
    heads: int

    def kv_cache_bytes(self, tokens: float) -> float:
        return sum(one.held_bytes(tokens) for one in self.caches)

    def reserved_bytes(self, tokens: int, step_tokens: int, block: int = BLOCK_TOKENS) -> float:
        return reserved_bytes(self.caches, tokens, step_tokens, block)

    def over(self, ranks: int) -> ModelShape:
        """Split this model among `ranks`: each holds its part of the KV heads, at least one, or a whole
        latent.

        Raises `SettingError` for heads that cannot be split.
        """
        if self.heads % ranks:
            raise SettingError(
                f"--tensor-parallel: expected a divisor of the model's {self.heads} attention heads, found "
                f"{ranks}"
            )
        caches = tuple(replace(one, token_bytes=one.token_bytes * _copies(one, ranks)) for one in self.caches)
        return replace(self, caches=caches)


def _copies(cached: CachedLayers, ranks: int) -> int:
    heads = cached.kv_heads
    if heads and heads % ranks and ranks % heads:
        raise SettingError(
            f"--tensor-parallel: expected a divisor or a multiple of the model's {heads} KV heads, found "
            f"{ranks}"
        )
    return max(1, ranks // heads) if heads else ranks


def read_shape(path: Path, *, kv_type: str | None = None) -> ModelShape:
    """Read `config.json` at `path` or in it; safetensors in the folder give the size of the weights.

    Raises `SettingError` for a file that is missing, too large or wrong.
    """
    if not path.exists():
        raise SettingError(
            f"model: expected a config.json or its folder on this machine, found no {path}; download it first"
        )
    file = path / "config.json" if path.is_dir() else path
    data = read_bytes(file, MAX_CONFIG_BYTES, f"model: {file}")
    try:
        config: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"model: {file} is not JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(config, dict):
        raise SettingError(f"model: {file}: expected a JSON object, found another value")
    shape = shape_of(config, str(file), kv_type=kv_type)
    stored = float(_stored_bytes(file.parent))
    found = Fields(text_config(config), str(file))
    if quantized_bytes(found) is None:
        stored *= found.type_bytes() / found.stored_type_bytes()
    return replace(shape, weight_bytes=stored) if stored else shape


def _stored_bytes(folder: Path) -> int:
    try:
        index: Any = orjson.loads(read_bytes(folder / INDEX, MAX_INDEX_BYTES, f"model: {folder / INDEX}"))
        total = index["metadata"]["total_size"]
        if type(total) is int and total > 0:
            return total
    except (SettingError, orjson.JSONDecodeError, LookupError, TypeError):
        pass  # There is no index, or it has no size.
    try:
        sizes = {each.name: each.stat().st_size for each in folder.glob("*.safetensors")}
    except OSError:
        return 0
    shards = [size for name, size in sizes.items() if not name.startswith("consolidated")]
    return sum(shards or sizes.values())


def shape_of(config: Mapping[str, Any], where: str, *, kv_type: str | None = None) -> ModelShape:
    found = Fields(text_config(config), where)
    kind = kind_of(found)
    layers = found.number("num_hidden_layers", most=MAX_LAYERS)
    counts = layer_counts(found, layers)
    full, windowed = attention_of(found), attention_of(found, windowed=True)
    bytes_each = found.type_bytes()
    kv_each = bytes_each if kv_type is None else type_bytes_of(kv_type, "--kv-cache-type")
    weights = weights_of(found, counts, full, windowed)
    images = image_weights(config, where)
    quantized = quantized_bytes(found)
    if quantized is None:
        stored = (weights.total + images) * bytes_each
    else:
        outer = weights.unquantized + (weights.attention if only_experts(found) else 0)
        stored = (weights.total - outer) * quantized + (outer + images) * bytes_each
    index_bytes = index_bytes_of(found, layers, kv_each) / layers
    caches = [
        CachedLayers(counts.full - counts.shared_full, full.kv_values * kv_each + index_bytes, full.kv_heads),
        CachedLayers(
            counts.windowed - counts.shared_windowed,
            windowed.kv_values * kv_each,
            windowed.kv_heads,
            counts.window,
            counts.chunked,
        ),
    ]
    if counts.recurrent:
        state_bytes = state_bytes_of(found, kind, bytes_each)
        caches.append(CachedLayers(counts.recurrent, state_bytes=state_bytes, states=states_of(kind)))
    return ModelShape(
        caches=tuple(one for one in caches if one.layers),
        parameters=float(weights.total + images),
        active_parameters=float(weights.active),
        weight_bytes=float(stored),
        pair_flops=float(counts.full * full.pair_flops + counts.windowed * windowed.pair_flops),
        max_context=_max_context(found),
        heads=full.heads,
    )


def _max_context(found: Fields) -> int | None:
    length = found.number("max_position_embeddings", 0)
    scaling = found.get("rope_scaling") or found.get("rope_parameters")
    if not length or not isinstance(scaling, dict) or found.get("model_type") == "gemma3_text":
        return length or None
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if not isinstance(factor, int | float) or not 1 <= factor <= MAX_NUMBER:
        return length
    if kind in ("linear", "dynamic"):
        return int(length * factor)
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int) and 0 < original <= MAX_NUMBER:
        return max(length, int(original * factor))
    return length


SCALE = 2 / 128
MAX_GROUPS = 100


def quantized_bytes(found: Fields) -> float | None:
    """Of the group with the most bits; None without quantization. Raises `SettingError`."""
    config = found.get("quantization_config")
    if not isinstance(config, dict):
        return None
    if config.get("quant_method") == "compressed-tensors":
        bits = _bits_of_groups(found, config)
        if bits is None:
            return None
    else:
        bits = config.get("bits", config.get("w_bit"))
    if bits is None:
        named = f"{str(config.get('quant_method'))[:40]} {str(config.get('quant_algo'))[:40]}"
        bits = 4 if config.get("load_in_4bit") or "4" in named else 8
    if type(bits) is not int or not 1 <= bits <= 16:
        raise SettingError(
            f"model: {found.where}: bits of the quantization: expected 1 to 16, found {shown(bits)}"
        )
    return bits / 8 + SCALE


def only_experts(found: Fields) -> bool:
    """As in gpt-oss."""
    config = found.get("quantization_config")
    return isinstance(config, dict) and config.get("quant_method") == "mxfp4"


def _bits_of_groups(found: Fields, config: dict[str, Any]) -> Any:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not 1 <= len(groups) <= MAX_GROUPS:
        raise SettingError(
            f"model: {found.where}: quantization_config: config_groups: expected 1 to {MAX_GROUPS} groups "
            f"with the bits of the weights, found {shown(groups)}"
        )
    bits = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            each = weights.get("num_bits")
            if type(each) is not int:
                return each if each is not None else "nothing"
            bits.append(each)
    return max(bits, default=None)
