"""Homes of Forebay for commands whose files a test inspects."""

from __future__ import annotations

from pathlib import Path

from forebay.settings import load_settings


def new_home(folder: Path, connectors: Path | None = None) -> Path:
    """Make `folder` a home, with what makes a JVM start fast in the usual one, and with this folder of
    connectors."""
    java = folder / "java"
    java.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    for prepared in load_settings().java.glob("flink-*.j*"):
        (java / prepared.name).symlink_to(prepared)
    if connectors is not None:
        (folder / "connectors").symlink_to(connectors)
    return folder
