import pytest

from forebay.testing.replica import ReplicaScript
from forebay.testing.replica.__main__ import main, parse, script_of
from forebay.testing.script import Faults, Mixture


def test_without_options_it_is_the_default() -> None:
    assert script_of(parse([]), "") == ReplicaScript()


def test_every_option_reaches_the_script() -> None:
    line = (
        "--model a --model b --delay 0.9:0.1,0.1:1 --seed 7 --token-s 0.01 --chunks 4 --slots 8"
        " --max-queue 16 --prefill-s-per-char 0.001 --block-chars 64 --cache-blocks 99 --max-model-len 1000"
        " --fault 500=0.01 --fault cut=0.02"
    )
    assert script_of(parse(line.split()), "") == ReplicaScript(
        models=("a", "b"),
        delay=Mixture(((0.9, 0.1), (0.1, 1.0)), 7),
        token_s=0.01,
        chunks=4,
        slots=8,
        max_queue=16,
        prefill_s_per_char=0.001,
        block_chars=64,
        cache_blocks=99,
        max_model_len=1000,
        faults=Faults((("500", 0.01), ("cut", 0.02)), 7),
    )


def test_a_script_from_standard_input() -> None:
    script = ReplicaScript(slots=3)
    assert script_of(parse(["--script", "-"]), script.to_json()) == script


@pytest.mark.parametrize("wrong", [["--delay", "fast"], ["--fault", "nonsense=1"], ["--script", "{}"]])
def test_settings_that_cannot_be_read_are_one_sentence(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(wrong) == 2
    assert capsys.readouterr().err.startswith("the settings are not valid: ")
