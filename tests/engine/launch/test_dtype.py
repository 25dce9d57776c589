from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.launch import dtype
from forebay.engine.launch.dtype import (
    TYPES,
    Processor,
    check_processor,
    choose,
    choose_by_features,
    known_type,
    measured_type,
    probe,
)
from forebay.engine.launch.environment import engine_python
from forebay.engine.launch.progress import Silent
from forebay.errors import LaunchError
from forebay.settings import Settings

LAPTOP = Processor("x86_64", "A Laptop", frozenset({"avx2", "fma"}))
SERVER = Processor("x86_64", "A Server", frozenset({"avx2", "avx512f", "avx512_bf16"}))


@pytest.mark.parametrize(
    ("speeds", "name"),
    [
        ({"bfloat16": 6.0, "float32": 71.0}, "float32"),
        ({"bfloat16": 608.0, "float32": 148.0}, "bfloat16"),
        ({"bfloat16": 100.0, "float32": 110.0}, "bfloat16"),
        ({"float32": 3.0}, "float32"),
        ({"bfloat16": 3.0, "float16": 500.0}, "bfloat16"),
    ],
)
def test_faster_type_is_chosen_unless_hardly_faster(speeds: dict[str, float], name: str) -> None:
    chosen = choose(speeds)
    assert chosen is not None
    assert (chosen.name, chosen.gflops) == (name, speeds[name])
    assert f"{name} {speeds[name]:.0f}" in chosen.reason


@given(st.dictionaries(st.sampled_from([*TYPES, "other"]), st.floats(allow_nan=True)))
def test_any_measurement_gives_a_measured_type_or_none(speeds: dict[str, float]) -> None:
    chosen = choose(speeds)
    assert chosen is None or (chosen.name in TYPES and speeds[chosen.name] > 0)


def test_without_a_measurement_the_processor_decides() -> None:
    assert choose({}) is None
    assert choose_by_features(SERVER).name == "bfloat16"
    assert choose_by_features(Processor("x86_64", "", frozenset({"amx_bf16"}))).name == "bfloat16"
    assert choose_by_features(LAPTOP).name == "float32"
    assert choose_by_features(Processor("riscv64")).name == "float32"


def test_processor_without_a_vllm_build_is_named() -> None:
    check_processor(LAPTOP)
    check_processor(Processor("x86_64"))
    check_processor(Processor("aarch64", "", frozenset({"asimd"})))
    with pytest.raises(LaunchError, match=r"\(An Atom\) has no AVX2.*--engine URL"):
        check_processor(Processor("x86_64", "An Atom", frozenset({"sse4_2"})))


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", python=Path(sys.executable))


def engine_that_says(settings: Settings, words: str, status: int = 0) -> Path:
    """An engine's Python that records its calls and prints `words`; returns the file of its records."""
    python, notes = engine_python(settings), settings.home / "notes"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(
        f"#!{sys.executable} -I\nimport sys\n"
        f"open({str(notes)!r}, 'a').write(' '.join(sys.argv[3:]) + '\\n')\n"
        f"print({words!r})\nsys.exit({status})\n"
    )
    python.chmod(0o755)
    return notes


def test_processor_is_measured_once(home: Settings) -> None:
    notes = engine_that_says(home, json.dumps({"bfloat16": 5.0, "float32": 75.0}))
    assert known_type(home, SERVER, 2).name == "bfloat16", "by its measurement"
    for _ in range(2):
        assert measured_type(home, SERVER, (0, 1), 2, Silent()).name == "float32"
    assert notes.read_text() == "2 0,1 bfloat16 float32\n"
    assert known_type(home, SERVER, 2).name == "float32", "by what was measured"
    measured_type(home, SERVER, (0,), 1, Silent())
    measured_type(home, LAPTOP, (0, 1), 2, Silent())
    assert len(notes.read_text().splitlines()) == 3, "other threads and another processor are measured again"


def test_only_the_latest_measurements_are_kept(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    engine_that_says(home, json.dumps({"float32": 75.0}))
    monkeypatch.setattr(dtype, "KEPT", 2)
    for threads in (1, 2, 3):
        measured_type(home, LAPTOP, (0,), threads, Silent())
    assert [known_type(home, LAPTOP, threads).gflops for threads in (1, 2, 3)] == [None, 75.0, 75.0]


@pytest.mark.parametrize(("words", "status"), [("", 0), ("[1]", 0), ("{}", 0), ('{"float32": 9}', 1)])
def test_failed_measurement_leaves_the_choice_to_the_processor(
    home: Settings, words: str, status: int
) -> None:
    engine_that_says(home, words, status)
    assert probe(home, (0,), 1) == {}
    assert measured_type(home, LAPTOP, (0,), 1, Silent()).name == "float32"
    assert measured_type(home, SERVER, (0,), 1, Silent()).name == "bfloat16"


def test_without_an_engine_nothing_is_measured(home: Settings) -> None:
    assert probe(home, (), 1) == {}


def test_damaged_record_is_measured_again(home: Settings) -> None:
    notes = engine_that_says(home, json.dumps({"float32": 75.0}))
    for content in (b"{", b'{"a": 1}'):
        (home.home / "number-types.json").write_bytes(content)
        assert known_type(home, LAPTOP, 1).gflops is None
        assert measured_type(home, LAPTOP, (0,), 1, Silent()).gflops == 75.0
    assert len(notes.read_text().splitlines()) == 2
