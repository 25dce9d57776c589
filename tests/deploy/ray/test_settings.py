"""A fleet file is checked as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.deploy.ray.config import load_fleet
from forebay.errors import SettingError


def load(folder: Path, text: str, *settings: str, address: str | None = None) -> object:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path, settings, address)


def test_name_and_model_are_enough(tmp_path: Path) -> None:
    spec = load(tmp_path, "name: fleet\nmodel: org/model\n", "gpu=1", address="http://head:8265")
    assert (spec.gpu, spec.address, spec.command[0]) == (1.0, "http://head:8265", "vllm")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m", "name: missing"),
        ("name: a\nmodel: m\nreplica: 2", r"fleet.yaml:3: unknown key 'replica'; did you mean 'replicas'\?"),
        ("name: a\nmodel: m\nreplicas: 0", "greater than or equal to 1"),
        ("name: A b\nmodel: m", "a DNS label"),
        ("name: a\nmodel: m\ncommand: [x, '{host}']", r"expected \{port\} in 'command'"),
        ("name: a\nmodel: m\nfirst_port: 60000", "expected ports up to 65535"),
        ("name: a\nmodel: m\naddress: head:8265", "expected a URL"),
        ("name: a\nmodel: m\nenv: {HF_TOKEN: hf_aaaaaaaaaaaa}", "env.HF_TOKEN: it looks like a secret"),
        ("name: a\nmodel: m\nargs: [--api-key=abcdefgh]", r"args\[0\]: it looks like a secret"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as caught:
        load(tmp_path, text)
    assert "hf_aaaa" not in str(caught.value)


@pytest.mark.parametrize("module", ["ray.config", "ray.autoscale", "kubernetes", "controller.loop"])
def test_each_program_begins_with_its_own_module(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import forebay.deploy.{module}"], check=True)
