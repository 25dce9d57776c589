"""What a model's `config.json` says of its weights and its KV cache. The file is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.files import read_bytes

MAX_CONFIG_BYTES = 1 << 20
MOST = 100_000_000
MOST_LAYERS = 2000
TYPE_BYTES = {
    "float32": 4.0,
    "float": 4.0,
    "float16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
}
WINDOWED = frozenset(("sliding_attention", "local_attention", "chunked_attention"))
FULL = frozenset(("full_attention", "global_attention", "attention"))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        layers: Layers with a KV cache that keeps all tokens.
        window_layers: Layers that keep the last `window` tokens only.
        kv_bytes: KV cache per token and layer, in bytes.
        parameters: Weights in all.
        active_parameters: Weights that one token is multiplied with: without the experts that it passes over
            and without the input embedding.
        weight_bytes: Bytes that the weights take.
        pair_flops: Operations of attention per pair of tokens, over all layers.
        max_context: Tokens of a request at most; None: the file does not say.
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

    def kv_cache_bytes(self, tokens: float) -> float:
        """KV cache of a request with so many tokens, in bytes."""
        kept = min(tokens, self.window) if self.window_layers else 0
        return self.kv_bytes * (self.layers * tokens + self.window_layers * kept)


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
    try:
        stored = sum(each.stat().st_size for each in file.parent.glob("*.safetensors"))
    except OSError:
        stored = 0
    if not stored:
        return shape
    values = {name: getattr(shape, name) for name in ModelShape.__slots__}
    return ModelShape(**{**values, "weight_bytes": float(stored)})


def shape_of(config: Mapping[str, Any], where: str, *, kv_type: str | None = None) -> ModelShape:
    """The shape that a config describes. Feed-forward layers are taken as gated, with three matrices."""
    text = config.get("text_config")
    found = _Fields({**config, **text} if isinstance(text, dict) else config, where)
    hidden, layers = found.number("hidden_size"), found.number("num_hidden_layers", most=MOST_LAYERS)
    heads = found.number("num_attention_heads")
    kv_heads = found.number("num_key_value_heads", heads)
    size = found.number("head_dim", max(hidden // heads, 1))
    vocabulary = found.number("vocab_size")
    bytes_each = found.type_bytes()
    kv_each = bytes_each if kv_type is None else _type_bytes(kv_type, "--kv-cache-type")
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
    windowed, window = found.windows(layers)
    dense, active = _feed_forward(found, hidden, layers)
    embedding = vocabulary * hidden
    tied = found.flag("tie_word_embeddings")
    parameters = layers * (attention + 2 * hidden) + dense + embedding * (1 if tied else 2) + hidden
    used = layers * attention + active + embedding
    quantized = found.quantized_bytes()
    if quantized is None:
        weights = parameters * bytes_each
    else:
        outer = embedding * (1 if tied else 2)
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
        max_context=found.number("max_position_embeddings", 0) or None,
    )


def _feed_forward(found: _Fields, hidden: int, layers: int) -> tuple[int, int]:
    """Weights of all feed-forward layers, and those of them that one token is multiplied with."""
    inner = found.number("intermediate_size", 4 * hidden)
    experts = found.first(("num_local_experts", "num_experts", "n_routed_experts"), 0)
    if not experts:
        return layers * 3 * hidden * inner, layers * 3 * hidden * inner
    chosen = min(found.first(("num_experts_per_tok", "moe_top_k"), 2), experts)
    expert = 3 * hidden * found.number("moe_intermediate_size", inner)
    shared = found.number("n_shared_experts", 0) * expert
    shared += 3 * hidden * found.number("shared_expert_intermediate_size", 0)
    plain = min(found.number("first_k_dense_replace", 0), layers)
    every = found.first(("decoder_sparse_step", "moe_layer_freq"), 1)
    sparse = (layers - plain) // every
    router = hidden * experts
    rest = (layers - sparse) * 3 * hidden * inner
    return (
        rest + sparse * (experts * expert + shared + router),
        rest + sparse * (chosen * expert + shared + router),
    )


class _Fields:
    """A config's fields, each held to a range."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def number(self, name: str, default: int | None = None, most: int = MOST) -> int:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        least = 0 if default == 0 else 1
        if type(value) is not int or not least <= value <= most:
            raise SettingError(
                f"model: {self._where}: {name}: expected a whole number from {least} to {most}, found "
                f"{_shown(value)}"
            )
        return value

    def first(self, names: tuple[str, ...], default: int) -> int:
        """The first of these fields that is there; `default` for 0."""
        for name in names:
            if isinstance(self._values.get(name), list):
                continue
            if self._values.get(name) is not None:
                return self.number(name, 0) or default
        return default

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def type_bytes(self) -> float:
        named = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        return _type_bytes(named, f"model: {self._where}: dtype")

    def quantized_bytes(self) -> float | None:
        """Bytes per quantized weight; None where there is no quantization."""
        found = self._values.get("quantization_config")
        if not isinstance(found, dict):
            return None
        bits = found.get("bits", found.get("w_bit"))
        if bits is None:
            bits = 4 if found.get("load_in_4bit") or "4" in str(found.get("quant_method"))[:40] else 8
        if type(bits) is not int or not 1 <= bits <= 16:
            raise SettingError(
                f"model: {self._where}: bits of the quantization: expected 1 to 16, found {_shown(bits)}"
            )
        # A scale of two bytes for each 128 weights.
        return bits / 8 + 2 / 128

    def windows(self, layers: int) -> tuple[int, int]:
        """How many layers keep a window only, and how many tokens it holds."""
        window = self.number("sliding_window", 0) or self.number("attention_chunk_size", 0)
        kinds = self._values.get("layer_types")
        if isinstance(kinds, list):
            known = [kind for kind in kinds[:MOST_LAYERS] if isinstance(kind, str)]
            other = [kind for kind in known if kind not in WINDOWED | FULL]
            if other or len(kinds) != layers or len(known) != layers:
                raise SettingError(
                    f"model: {self._where}: layer_types: expected {layers} of "
                    f"{', '.join(sorted(WINDOWED | FULL))}, found "
                    f"{_shown(other[0]) if other else f'{len(kinds)} values'}; "
                    "forebay plan does not know other kinds of layers"
                )
            windowed = sum(kind in WINDOWED for kind in known)
        elif not window or self._values.get("use_sliding_window") is False:
            return 0, 0
        elif (every := self.number("sliding_window_pattern", 0)) > 0:
            windowed = layers - layers // every
        elif self._values.get("use_sliding_window") is True:
            windowed = layers - min(self.number("max_window_layers", 0), layers)
        else:
            windowed = layers
        if windowed and not window:
            raise SettingError(
                f"model: {self._where}: layer_types name windows, and sliding_window is missing"
            )
        return windowed, window


def _type_bytes(named: object, called: str) -> float:
    name = str(named)[:40].removeprefix("torch.")
    aliases = {"fp8": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    name = aliases.get(name, name)
    if name not in TYPE_BYTES:
        raise SettingError(f"{called}: expected one of {', '.join(TYPE_BYTES)}, found {name!r}")
    return TYPE_BYTES[name]


def _shown(value: object) -> str:
    return (
        "nothing" if value is None else repr(value)[:60] if not isinstance(value, list | dict) else "a list"
    )
