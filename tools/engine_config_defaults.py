"""Prints the defaults of configuration classes as JSON; runs in the engine's Python, not in Forebay's.

Reads `{"fields": [...], "vision_fields": [...], "types": [...]}` from standard input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import sys
from typing import Any

import transformers  # type: ignore[import-not-found]


def config_class(model_type: str) -> Any:
    """The class with which the engine reads a config of this type, or None."""
    if model_type in transformers.CONFIG_MAPPING:
        return transformers.CONFIG_MAPPING[model_type]
    from vllm.transformers_utils.config import _CONFIG_REGISTRY  # type: ignore[import-not-found]

    # Its `get` returns the name of a class, not the class.
    return _CONFIG_REGISTRY[model_type] if model_type in _CONFIG_REGISTRY else None  # noqa: SIM401


def declared(cls: Any) -> dict[str, Any]:
    """Defaults as the class declares them, not those that it computes from other fields."""
    if "__dataclass_fields__" in cls.__dict__:
        return {
            field.name: field.default
            for field in dataclasses.fields(cls)
            if field.default is not dataclasses.MISSING
        }
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(cls.__init__).parameters.values()
        if parameter.default is not inspect.Parameter.empty
    }


def text_type(cls: Any) -> str | None:
    """The model type of the text model within a multimodal one."""
    if cls.model_type.endswith("_text") or "text_config" not in {*cls.sub_configs, *declared(cls)}:
        return None
    with contextlib.suppress(Exception):
        found = cls().get_text_config().model_type
        return found if found != cls.model_type else None
    return None


def defaults_of(
    model_type: str, fields: frozenset[str], vision_fields: frozenset[str]
) -> dict[str, Any] | None:
    """The defaults of one type, by the names that `fields` lists; None if no class is known."""
    cls = config_class(model_type)
    if cls is None:
        return None
    renamed = dict(getattr(cls, "attribute_map", {}))
    own = {theirs: ours for ours, theirs in renamed.items() if ours in fields}
    values = {}
    for name, value in declared(cls).items():
        ours = own.get(name, name)
        if ours in fields and type(value) in (bool, int, float, str):
            values[ours] = value
    found: dict[str, Any] = {"defaults": dict(sorted(values.items()))}
    if own:
        found["names"] = dict(sorted(own.items()))
    inner = text_type(cls)
    if inner:
        found["text"] = inner
        if vision := vision_defaults(cls, vision_fields):
            found["vision"] = vision
    return found


def vision_defaults(cls: Any, fields: frozenset[str]) -> dict[str, Any]:
    """The defaults of the image encoder of a multimodal model."""
    with contextlib.suppress(Exception):
        inner = type(cls().vision_config)
        return {
            name: value
            for name, value in sorted(declared(inner).items())
            if name in fields and type(value) is int
        }
    return {}


def main() -> None:
    """Answer the question on standard input."""
    asked = json.load(sys.stdin)
    fields = frozenset(asked["fields"])
    vision_fields = frozenset(asked["vision_fields"])
    types = asked["types"]
    found = {name: defaults_of(name, fields, vision_fields) for name in types}
    # Multimodal models around one of these types.
    for name in transformers.CONFIG_MAPPING:
        if name not in found:
            with contextlib.suppress(Exception):
                one = defaults_of(name, fields, vision_fields)
                if one and one.get("text") in types:
                    found[name] = one
    json.dump({"transformers": transformers.__version__, "models": found}, sys.stdout)


main()
