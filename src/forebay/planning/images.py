"""The number of weights of a multimodal model's image encoder, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.planning.config_fields import MAX_LAYERS, Fields
from forebay.planning.defaults import vision_config

GATED = ("qwen2_5_vl", "qwen2_5_omni", "pixtral", "mistral3")
"""Types whose encoder has three matrices in a feed-forward layer."""


def image_weights(config: Mapping[str, Any], where: str) -> int:
    """Count the weights of a vision transformer and its merger; 0 if the config describes none.

    Patch and position embeddings are left out: they are less than 1 % of a model.
    """
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
