"""What a task's thread changes inside a JVM, and leaves alone outside one."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from forebay.flink.jvm_task import YOUNG, collect_less, is_cancelled


@pytest.fixture
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    # Another test of this process may have acted as inside a JVM.
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_garbage_collection_is_rarer_inside_a_jvm(
    threshold: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pemja", ModuleType("pemja"))
    assert threshold[0] < YOUNG
    collect_less()
    assert gc.get_threshold() == (YOUNG, 20, 20)


def test_garbage_collection_is_unchanged_outside_a_jvm(
    threshold: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pemja", raising=False)
    collect_less()
    assert gc.get_threshold() == threshold


def test_outside_a_jvm_nothing_is_cancelled() -> None:
    assert not is_cancelled()
