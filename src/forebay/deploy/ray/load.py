"""Loads a checked `RayFleetSpec` from a fleet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forebay.deploy.ray.settings import RayFleetSpec
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.errors import SettingError
from forebay.pipeline.load import set_values
from forebay.secret_text import secrets_written_in

WHAT = "Ray fleet"


def load_fleet(path: Path, settings: Sequence[str] = (), address: str | None = None) -> RayFleetSpec:
    """Load the fleet file at `path`; blocks on the file system.

    `settings` (`key=value`) and `address` override it. Raises `SettingError` with one line per mistake, also
    for likely secrets, which everybody with access to the cluster could read.
    """
    value, lines = read_document(path, WHAT)
    given: list[Where] = []
    if isinstance(value, dict):
        given = set_values(value, settings, known_paths(RayFleetSpec, value))
        if address is not None:
            value["address"] = address
            given.append(("address",))
    spec = check_document(RayFleetSpec, value, what=WHAT, name=str(path), lines=lines, given=given)
    problems = [
        f"{path}: {key}: it looks like a secret, and everybody with access to the cluster can read it: set "
        f"the variable on the nodes: engines inherit it"
        for key in secrets_written_in(value)
    ]
    if problems:
        raise SettingError("\n".join(problems))
    return spec
