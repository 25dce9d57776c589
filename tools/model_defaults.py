"""Writes `forebay/planning/model_defaults.json`: what transformers assumes for missing fields.

`make model-defaults` runs it; it needs the engine's environment.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import forebay.planning
from forebay.engine.launch.environment import engine_python
from forebay.planning.defaults import CONFIG_FIELDS, DATA, VISION_FIELDS
from forebay.planning.layers import KINDS
from forebay.settings import load_settings

IN_ENGINE = Path(__file__).with_name("engine_config_defaults.py")
TIMEOUT_S = 300


def installed_defaults(python: Path) -> dict[str, Any]:
    """The defaults of the transformers that this Python has, as the file holds them."""
    asked = json.dumps({"fields": CONFIG_FIELDS, "vision_fields": VISION_FIELDS, "types": sorted(KINDS)})
    ended = subprocess.run(
        [str(python), str(IN_ENGINE)],
        input=asked,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def text_of(found: dict[str, Any]) -> str:
    """The file's content: one line for each type."""
    models = found["models"]
    lines = ",\n".join(f'"{name}": {json.dumps(models[name], sort_keys=True)}' for name in sorted(models))
    return f'{{"transformers": "{found["transformers"]}", "models": {{\n{lines}\n}}}}\n'


def main() -> None:
    """Write the file."""
    path = Path(forebay.planning.__file__).with_name(DATA)
    path.write_text(text_of(installed_defaults(engine_python(load_settings()))))
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
