from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import forebay as fb
import forebay.testing

NAMES = """
    Answer Ask DeadLetter Event Failure Fleet ForebayError Inference Message Moment ObjectStream Output
    Outputs Program Result RetryPolicy Sampling Step Timer TopicOutputs Usage environment infer
    infer_stateful newest_checkpoint read_csv read_jsonl read_kafka read_text sessions summaries topics trends
    write_jsonl write_kafka
"""
TESTING = """
    CallReport Faults Fixed Machine Mixture ReplicaProcess ReplicaScript ReplicaThread ScriptedEngineFactory
    local_cluster wait_until
"""
LIGHT = {"forebay", "forebay.lazy_names"}


@pytest.mark.parametrize(("module", "names"), [(fb, NAMES), (forebay.testing, TESTING)])
def test_public_names(module: object, names: str) -> None:
    assert vars(module)["__all__"] == sorted(names.split(), key=lambda name: (not name[0].isupper(), name))
    for name in names.split():
        assert getattr(module, name).__name__ == name
    assert set(names.split()) <= set(dir(module))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'forebay' has no attribute 'inferr'"):
        _ = fb.inferr  # type: ignore[attr-defined]


def imported(statement: str) -> set[str]:
    """The modules that a fresh Python imports for `statement`, without its own."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    return {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}


def test_import_alone_loads_nothing() -> None:
    assert imported("import forebay") == LIGHT


def test_values_need_no_flink() -> None:
    loaded = imported("import forebay as fb; fb.Event; fb.Result; fb.Step; fb.Program; fb.ForebayError")
    assert {name.partition(".")[0] for name in loaded} == {"forebay"}
