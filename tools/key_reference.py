"""Generate the tables of keys in the pages about pipelines, the gateway and deployments.

`python -m tools.key_reference docs/pipeline.md` brings a page up to date; a test checks that it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from forebay.deploy.kubernetes import DeploymentSpec
from forebay.deploy.ray.config import RayFleetSpec
from forebay.engine.prompt.filters import FILTERS, METHODS, TESTS
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.spec import PipelineSpec

SPECS: dict[str, type[BaseModel]] = {
    "gateway": GatewaySpec,
    "deployment": DeploymentSpec,
    "ray": RayFleetSpec,
}
"""The settings that a page is about; every other one is about pipelines."""
BEGIN = "<!-- Made from the code by tools.key_reference: do not edit from here … -->"
END = "<!-- … to here. -->"
SECRET = "`{env: NAME}` or `{file: PATH}`"
MIN_COMMON = 3
"""Fewer keys that kinds of a mapping share are repeated in their tables."""


def reference(spec: type[BaseModel] = PipelineSpec) -> str:
    """The tables of all keys of `spec`, and for pipelines what templates may use, as Markdown."""
    schema = spec.model_json_schema(by_alias=True)
    shown: dict[str, str] = {}
    parts = ["## All keys\n", *_table(_rows(schema, schema))]
    for key, value in schema["properties"].items():
        parts += _section(schema, key, value, shown)
    if spec is not PipelineSpec:
        return "\n".join(parts).rstrip() + "\n"
    parts += ["## What templates may use\n"]
    parts += [f"Filters: {_names(sorted(FILTERS))}.\n", f"Tests (`is …`): {_names(sorted(TESTS))}.\n"]
    parts += [f"Methods: {_names(sorted(METHODS))}. The only function is `range(…)`.\n"]
    return "\n".join(parts).rstrip() + "\n"


def updated(text: str, spec: type[BaseModel] = PipelineSpec) -> str:
    """`text` with everything between the marks replaced by the current reference."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n\n{reference(spec)}\n{END}{tail}"


def _section(schema: dict[str, Any], key: str, value: dict[str, Any], shown: dict[str, str]) -> Iterator[str]:
    """The tables of a key's mappings. `shown`: the titles of those that the page has, by their content.

    Mappings that the page has already, and keys that another kind of the same mapping has, are links."""
    first, first_rows = "", dict[str, str]()
    for model in _models(schema, value):
        if _is_secret(model):
            continue
        kind = model["properties"].get("type", {}).get("const")
        title = f"`{key}`{f' with `type: {kind}`' if kind else ''}"
        content = json.dumps(model["properties"], sort_keys=True)
        if shown.get(content) == title:
            continue
        yield f"### {title}\n"
        yield f"{model['description']}\n"
        if content in shown:
            yield f"Its keys are those of {_link(shown[content])}.\n"
            continue
        shown[content] = title
        rows = _rows(schema, model)
        common = [name for name in rows if first_rows.get(name) == rows[name]]
        if len(common) < MIN_COMMON:
            common = []
        rest = {name: row for name, row in rows.items() if name not in common}
        if common:
            yield f"It has {_names(common)} of {_link(first)}{', and:' if rest else '.'}\n"
        yield from _table(rest)
        if not first:
            first, first_rows = title, rows
        for inner, inner_value in model["properties"].items():
            if inner not in common:
                yield from _section(schema, f"{key}.{inner}", inner_value, shown)


def _link(title: str) -> str:
    return f"[{title}](#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"


def _is_secret(model: dict[str, Any]) -> bool:
    return set(model["properties"]) == {"env", "file"}


def _models(schema: dict[str, Any], value: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in value:
        model = schema["$defs"][value["$ref"].rpartition("/")[2]]
        return [model] if "properties" in model else []
    inner = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    inner += [value[part] for part in ("items", "additionalProperties") if isinstance(value.get(part), dict)]
    return [model for part in inner for model in _models(schema, part)]


def _table(rows: dict[str, str]) -> Iterator[str]:
    if rows:
        yield "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows.values()]) + "\n"


def _rows(schema: dict[str, Any], model: dict[str, Any]) -> dict[str, str]:
    """The row of each key."""
    rows = {}
    for name, value in model["properties"].items():
        if name == "type":
            continue
        # If a field and its model have the same description, pydantic gives it only to the model.
        models = _models(schema, value)
        meaning = value.get("description") or (models[0]["description"] if models else "")
        cells = (f"`{name}`", _type(schema, value), _default(model, name, value), meaning)
        rows[name] = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    return rows


def _type(schema: dict[str, Any], value: dict[str, Any]) -> str:
    if "enum" in value or "const" in value:
        return " or ".join(f"`{choice}`" for choice in value.get("enum", [value.get("const")]))
    alternatives = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    if alternatives:
        named = dict.fromkeys(_type(schema, part) for part in alternatives)
        return " or ".join(named)
    if "$ref" in value:
        models = _models(schema, value)
        return (SECRET if _is_secret(models[0]) else "mapping, see below") if models else "any"
    if value.get("type") == "array":
        return f"list of {_type(schema, value['items'])}"
    if value.get("type") == "object" and _models(schema, value):
        secret = all(_is_secret(model) for model in _models(schema, value))
        return f"names, each with {SECRET if secret else 'a mapping, see below'}"
    return _NAMES.get(value.get("type", ""), "any") + _bounds(value)


_NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
    "null": "null",
}


def _bounds(value: dict[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {value[name]:,}" for name, sign in words.items() if name in value]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(model: dict[str, Any], name: str, value: dict[str, Any]) -> str:
    if "derived" in value:
        return str(value["derived"])
    if name in model.get("required", ()):
        return "**needed**"
    default = value.get("default", {})
    if isinstance(default, dict) and default:
        return "as below"
    return "" if default in ([], {}) else f"`{json.dumps(default, ensure_ascii=False)}`"


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    spec = SPECS.get(path.stem, PipelineSpec)
    path.write_text(updated(path.read_text(encoding="utf-8"), spec), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
