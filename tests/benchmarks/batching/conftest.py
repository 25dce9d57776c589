"""`ask`, like in the tests of other targets."""

from __future__ import annotations

from tests.bench.targets.conftest import ask

__all__ = ["ask"]
