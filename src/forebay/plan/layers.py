"""Which layers keep all tokens in the KV cache, which a window, and which have experts, by kind of model.

Only kinds of which this is known are planned: hybrids with recurrent layers, or layers that share a cache,
look like the others in a config and hold far less.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.errors import SettingError
from forebay.plan.config_fields import MOST_LAYERS, Fields, shown

WINDOWED = frozenset(("sliding_attention", "local_attention", "chunked_attention"))
FULL = frozenset(("full_attention", "global_attention", "attention"))
Windowed = Callable[[Fields, int], int]
"""How many of so many layers keep a window only, where no `layer_types` say it."""


def _none(found: Fields, layers: int) -> int:
    return 0


def _all(found: Fields, layers: int) -> int:
    return layers if found.get("sliding_window") is not None else 0


def _upper(found: Fields, layers: int) -> int:
    """Qwen: none unless `use_sliding_window`, then those above `max_window_layers`."""
    if found.get("use_sliding_window") is not True or found.get("sliding_window") is None:
        return 0
    return layers - min(found.number("max_window_layers", 28), layers)


def _but_every(default: int) -> Windowed:
    """All but every n-th layer."""

    def windowed(found: Fields, layers: int) -> int:
        return layers - layers // found.number("sliding_window_pattern", default, most=MOST_LAYERS)

    return windowed


def _chunked(found: Fields, layers: int) -> int:
    """Llama 4: layers with rotary positions attend within a chunk; all others to everything."""
    rotary = found.get("no_rope_layers")
    if isinstance(rotary, list) and rotary:
        if len(rotary) != layers or any(type(one) is not int or one not in (0, 1) for one in rotary):
            raise found.wrong("no_rope_layers", f"{layers} times 0 or 1")
        return sum(rotary)
    return layers - layers // found.number("no_rope_layer_interval", 4, most=MOST_LAYERS)


KINDS: dict[str, Windowed] = {
    **dict.fromkeys(
        ("llama", "gemma", "cohere", "granite", "granitemoe", "olmo", "olmo2", "olmoe", "stablelm", "glm4",
         "glm4_moe", "seed_oss", "deepseek_v2", "deepseek_v3", "kimi_k2"),
        _none,
    ),
    **dict.fromkeys(("mistral", "mixtral", "phi3", "phimoe"), _all),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"), _upper),
    **dict.fromkeys(("gemma2", "gpt_oss"), _but_every(2)),
    **dict.fromkeys(("olmo3", "cohere2"), _but_every(4)),
    **dict.fromkeys(("gemma3", "gemma3_text"), _but_every(6)),
    **dict.fromkeys(("llama4", "llama4_text"), _chunked),
}  # fmt: skip
WINDOWS = {
    "gemma2": 4096,
    "gemma3": 4096,
    "gemma3_text": 4096,
    "cohere2": 4096,
    "olmo3": 4096,
    "gpt_oss": 128,
}
"""Windows where a config says none, as the models' own code has them."""


def kind_of(found: Fields) -> str:
    """The kind of the model. Raises `SettingError` for one whose layers are not known."""
    kind = found.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingError(
            f"model: {found.where}: model_type: expected one of {', '.join(sorted(KINDS))}, found "
            f"{shown(kind)}; forebay plan does not know the layers of other kinds"
        )
    return kind


def windows(found: Fields, layers: int) -> tuple[int, int]:
    """How many layers keep a window only, and how many tokens it holds."""
    kind = kind_of(found)
    kinds = found.get("layer_types")
    windowed = _named(found, kinds, layers) if isinstance(kinds, list) else KINDS[kind](found, layers)
    if not windowed:
        return 0, 0
    if kind.startswith("llama4"):
        return windowed, found.number("attention_chunk_size", 8192)
    window = found.number("sliding_window", WINDOWS.get(kind, 0))
    if not window:
        raise SettingError(f"model: {found.where}: layer_types name windows, and sliding_window is missing")
    return windowed, window


def _named(found: Fields, kinds: list[object], layers: int) -> int:
    known = [kind for kind in kinds[:MOST_LAYERS] if isinstance(kind, str)]
    other = [kind for kind in known if kind not in WINDOWED | FULL]
    if other or len(kinds) != layers or len(known) != layers:
        raise SettingError(
            f"model: {found.where}: layer_types: expected {layers} of {', '.join(sorted(WINDOWED | FULL))}, "
            f"found {shown(other[0]) if other else f'{len(kinds)} values'}; "
            "forebay plan does not know other kinds of layers"
        )
    return sum(kind in WINDOWED for kind in known)


def sparse_layers(found: Fields, layers: int) -> int:
    """How many layers have experts, of a model that has some."""
    named = found.get("moe_layers")
    if isinstance(named, list) and named:
        return len(_indexes(found, "moe_layers", layers))
    first = found.number("first_k_dense_replace", 0)
    dense = _indexes(found, "mlp_only_layers", layers)
    each = found.get("moe_layer_freq")
    if isinstance(each, list):
        if len(each) != layers:
            raise found.wrong("moe_layer_freq", f"{layers} values or one number")
        chosen = {at for at, one in enumerate(each) if one}
    else:
        every = found.number("moe_layer_freq", 1)
        chosen = set(range(0, layers, every))
    step = found.number("decoder_sparse_step", 1)
    between = found.number("interleave_moe_layer_step", 1)
    return sum(
        at >= first and at not in dense and (at + 1) % step == 0 and (at + 1) % between == 0 for at in chosen
    )


def _indexes(found: Fields, name: str, layers: int) -> frozenset[int]:
    value = found.get(name)
    if value is None:
        return frozenset()
    if not isinstance(value, list) or any(type(one) is not int or not 0 <= one < layers for one in value):
        raise found.wrong(name, f"a list of layers from 0 to {layers - 1}")
    return frozenset(value)
