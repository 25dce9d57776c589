"""What all tests share: hypothesis's settings, and one JVM with one folder of logs per session."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline per example would be an assertion about the wall clock of a busy machine.
settings.register_profile("forebay", deadline=None, print_blob=True)
settings.load_profile("forebay")


@pytest.fixture(scope="session")
def flink_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's JVM writes; the first test that starts it decides, so all name this folder."""
    return tmp_path_factory.mktemp("flink-logs")
