"""Writes Ray Serve's config as a file for version control."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.errors import SettingError
from forebay.yaml_document import to_yaml

FILE = "serve.yaml"
HEAD = "# Made by `forebay deploy ray`: change the fleet file, then run it again.\n"


def write_config(config: Mapping[str, Any], folder: Path) -> Path:
    """Write `serve.yaml`; returns its path. Raises `SettingError` if the folder is not writable."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + to_yaml(dict(config)), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return path
