"""Which layers of a model cache all tokens, a window, or a state, and which have experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import SettingError
from forebay.planning.defaults import MAX_LAYERS, Fields, shown
from forebay.planning.kv_cache import DELTA_NET, MAMBA_2

WINDOWED = frozenset(("sliding_attention", "local_attention", "chunked_attention"))
FULL = frozenset(("full_attention", "global_attention", "attention", "indexed_attention"))
RECURRENT = frozenset(("linear_attention", "mamba"))


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Layers that keep all tokens, the last `window`, or a state of fixed size.

    `chunked`: a fixed chunk (Llama 4). `shared_…`: those that read another layer's cache (Gemma 4).
    """

    full: int
    windowed: int = 0
    window: int = 0
    chunked: bool = False
    recurrent: int = 0
    shared_full: int = 0
    shared_windowed: int = 0


Special = Callable[[Fields, int], int]
"""Layers that keep less than all tokens, if the config has no `layer_types`."""


def _none(found: Fields, layers: int) -> int:
    return 0


def _all(found: Fields, layers: int) -> int:
    return layers if found.get("sliding_window") is not None else 0


def _upper(found: Fields, layers: int) -> int:
    if found.get("use_sliding_window") is not True or found.get("sliding_window") is None:
        return 0
    return layers - min(found.number("max_window_layers", 28), layers)


def _all_recurrent(found: Fields, layers: int) -> int:
    return layers


def _but_every(default: int, name: str = "sliding_window_pattern") -> Special:
    def special(found: Fields, layers: int) -> int:
        if name == "sliding_window_pattern" and found.get("sliding_window") is None:
            return 0
        return layers - layers // found.number(name, default, most=MAX_LAYERS)

    return special


def _alternate(found: Fields, layers: int) -> int:
    return 0 if found.get("sliding_window") is None else (layers + 1) // 2


def _but_each_fourth_from_first(found: Fields, layers: int) -> int:
    return 0 if found.get("sliding_window") is None else layers - -(-layers // 4)


def _cohere_moe(found: Fields, layers: int) -> int:
    dense = min(found.number("first_k_dense_replace", 0), layers)
    first = found.number("prefix_dense_sliding_window_pattern", 1)
    return dense - dense // first + _but_every(4)(found, layers - dense)


def _exaone(found: Fields, layers: int) -> int:
    pattern = found.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and found.get("sliding_window") is not None:
        return sum(pattern[at % len(pattern)] == "L" for at in range(layers - 1))
    return _but_every(4)(found, layers)


def _chunked(found: Fields, layers: int) -> int:
    rotary = found.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        if len(rotary) != layers or any(type(one) is not int or one not in (0, 1) for one in rotary):
            raise found.wrong("no_rope_layers", f"{layers} times 0 or 1")
        return sum(rotary)
    return layers - layers // found.number("no_rope_layer_interval", 4, most=MAX_LAYERS)


KINDS: dict[str, Special] = {
    **dict.fromkeys(
        ("apertus", "arcee", "aria_text", "bloom", "cohere", "cwm", "deepseek_v2", "deepseek_v3",
         "deepseek_v32", "dots1", "ernie4_5", "ernie4_5_moe", "falcon", "flex_olmo", "gemma", "glm",
         "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_text", "glm_moe_dsa", "gpt2",
         "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe", "granitemoeshared",
         "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "jais2", "kimi_k2", "llama",
         "mellum", "minimax_m2", "nemotron", "olmo", "olmo2", "olmoe", "opt", "paddleocr_vl_text",
         "persimmon", "phi", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss",
         "stablelm"),
        _none,
    ),
    **dict.fromkeys(("ministral3", "mistral", "mixtral", "phi3", "phimoe", "starcoder2"), _all),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3", "qwen3_moe",
         "smollm3"),
        _upper,
    ),
    **dict.fromkeys(("gemma2", "gpt_oss", "vaultgemma"), _alternate),
    **dict.fromkeys(("olmo3", "cohere2"), _but_every(4)),
    "cohere2_moe": _cohere_moe,
    **dict.fromkeys(("exaone4", "exaone_moe"), _exaone),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), _but_each_fourth_from_first),
    **dict.fromkeys(("gemma3_text", "gemma4_text"), _but_every(6)),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _but_every(4, "full_attention_interval")
    ),
    **dict.fromkeys(("granitemoehybrid", "nemotron_h"), _all_recurrent),
    "llama4_text": _chunked,
}  # fmt: skip
HYBRID = DELTA_NET | MAMBA_2
FIRST_DENSE = {"glm4_moe_lite": 1, "hy_v3": 1}
"""For types whose configuration class has no field for it."""
BLOCKS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
OLD_BLOCKS = {"mamba": "linear_attention", "attention": "full_attention"}


def kind_of(found: Fields) -> str:
    """Raises `SettingError` for an unknown type."""
    kind = found.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingError(
            f"model: {found.where}: model_type: expected one of {', '.join(sorted(KINDS))}, or a multimodal "
            f"model around one of them, found {shown(kind)}; forebay plan does not know the layers of others"
        )
    return kind


def layer_counts(found: Fields, layers: int) -> LayerCounts:
    """Raises `SettingError` for unknown layers."""
    kind = kind_of(found)
    if kind == "nemotron_h":
        blocks = block_types(found)
        return _hybrid(found, blocks.count("full_attention"), blocks.count("linear_attention"))
    named = found.get("layer_types")
    special = _named(found, kind, named, layers) if isinstance(named, list) else KINDS[kind](found, layers)
    if not special and kind != "gemma4_text":
        return LayerCounts(layers)
    if kind in HYBRID:
        return _hybrid(found, layers - special, special)
    chunked = kind == "llama4_text"
    window = found.number("attention_chunk_size" if chunked else "sliding_window", 0)
    if not window:
        raise SettingError(f"model: {found.where}: layer_types name windows, and sliding_window is missing")
    if kind == "gemma4_text":
        return _gemma_4(found, named, layers, window)
    return LayerCounts(layers - special, special, window, chunked)


def _hybrid(found: Fields, full: int, recurrent: int) -> LayerCounts:
    if not full:
        raise SettingError(
            f"model: {found.where}: layer_types: expected at least one layer with full attention, found "
            "none; forebay plan does not know models without a KV cache"
        )
    return LayerCounts(full, recurrent=recurrent)


def block_types(found: Fields) -> list[str]:
    pattern = found.get("hybrid_override_pattern")
    values = found.get("layer_types") or found.get("layers_block_type") or pattern
    layers = found.number("num_hidden_layers", most=MAX_LAYERS)
    if not isinstance(values, list | str) or len(values) != layers:
        raise found.wrong("hybrid_override_pattern", f"{layers} layers")
    blocks = [BLOCKS.get(str(one), OLD_BLOCKS.get(str(one), str(one))) for one in values]
    if other := [one for one in blocks if one not in BLOCKS.values()]:
        raise found.wrong("hybrid_override_pattern", f"only M, *, - and E, not {shown(other[0])}")
    return blocks


def _gemma_4(found: Fields, named: object, layers: int, window: int) -> LayerCounts:
    if isinstance(named, list):
        windowed = [one in WINDOWED for one in named]
    else:
        windowed = [(at + 1) % 6 != 0 for at in range(layers)]
    windowed[-1] = False
    shared = found.number("num_kv_shared_layers", 0, most=layers - 1)
    last = windowed[layers - shared :]
    return LayerCounts(
        layers - sum(windowed),
        sum(windowed),
        window,
        shared_full=len(last) - sum(last),
        shared_windowed=sum(last),
    )


def _named(found: Fields, kind: str, named: list[object], layers: int) -> int:
    known = [one for one in named[:MAX_LAYERS] if isinstance(one, str)]
    special = RECURRENT if kind in HYBRID else WINDOWED
    other = [one for one in known if one not in special | FULL]
    if other or len(named) != layers or len(known) != layers:
        raise SettingError(
            f"model: {found.where}: layer_types: expected {layers} of {', '.join(sorted(special | FULL))}, "
            f"found {shown(other[0]) if other else f'{len(named)} values'}; "
            "forebay plan does not know other kinds of layers"
        )
    return sum(one in special for one in known)


def sparse_layers(found: Fields, layers: int) -> int:
    named = found.get("moe_layers")
    if isinstance(named, list) and named:
        return len(_indexes(found, "moe_layers", layers))
    types = found.get("mlp_layer_types")
    if isinstance(types, list):
        if len(types) != layers:
            raise found.wrong("mlp_layer_types", f"{layers} times dense or sparse")
        return sum(one == "sparse" for one in types)
    first = found.number("first_k_dense_replace", 0) or FIRST_DENSE.get(kind_of(found), 0)
    first = first or found.number("moe_layer_start_index", 0)
    dense = _indexes(found, "mlp_only_layers", layers)
    each = found.get("moe_layer_freq")
    if isinstance(each, list):
        if len(each) != layers:
            raise found.wrong("moe_layer_freq", f"{layers} values or one number")
        chosen = {at for at, one in enumerate(each) if one}
    else:
        every = found.number("moe_layer_freq", 1)
        chosen = set(range(0, layers, every))
    step = found.number("decoder_sparse_step", 1) * found.number("moe_layer_interval", 1)
    between = found.number("interleave_moe_layer_step", 1)
    return sum(
        at >= first and at not in dense and (at + 1) % step == 0 and (at + 1) % between == 0 for at in chosen
    )


def index_layers(found: Fields, layers: int) -> int:
    """Layers with their own indexer (DeepSeek-V3.2 and GLM-5)."""
    if kind_of(found) not in ("deepseek_v32", "glm_moe_dsa"):
        return 0
    types, pattern = found.get("indexer_types"), found.get("index_topk_pattern")
    named = types if isinstance(types, list) else pattern
    if isinstance(named, list | str):
        if len(named) != layers:
            raise found.wrong("indexer_types", f"{layers} times full or shared")
        return sum(one in ("full", "F") for one in named)
    every = found.number("index_topk_freq", 1)
    offset = found.number("index_skip_topk_offset", 2)
    return sum(max(at - offset + 1, 0) % every == 0 for at in range(layers))


def _indexes(found: Fields, name: str, layers: int) -> frozenset[int]:
    value = found.get(name)
    if value is None:
        return frozenset()
    if not isinstance(value, list) or any(type(one) is not int or not 0 <= one < layers for one in value):
        raise found.wrong(name, f"a list of layers from 0 to {layers - 1}")
    return frozenset(value)
