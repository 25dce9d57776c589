"""`ask`, as the tests of the other targets have it."""

from __future__ import annotations

from tests.bench.targets.conftest import ask

__all__ = ["ask"]
