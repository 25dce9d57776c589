"""The start of `forebay autoscale`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.commands import forebay, refusal

from forebay.deploy.controller.decision import Decider
from forebay.deploy.controller.loop import ControllerScaling, deciders
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import ScalingLimits

KUBERNETES = ("autoscale", "kubernetes", "engine", "--pods=a=b")


def test_limits_that_contradict_each_other_are_refused() -> None:
    text = refusal(*KUBERNETES, "--min=5", "--max=2")
    assert "the least number, 5, is above the most, 2; lower one of them" in text


@pytest.mark.parametrize("word", ["engine", "other=0", "other=", "other=x", "=3", ""])
def test_each_deployment_has_a_name_of_its_own_and_perhaps_its_parts(word: str) -> None:
    text = refusal(*KUBERNETES, word, "--max=4")
    assert f"or as NAME=PARTS with a whole number from 1, found {word!r}" in text


def test_missing_cluster_is_reported_with_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightkube", reason="lightkube is missing: pip install 'forebay[kubernetes]'")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    error = forebay(*KUBERNETES, "--max=2").exception
    assert isinstance(error, DeployError)
    assert "no cluster: the kubeconfig cannot be used" in str(error)
    assert "name another one by KUBECONFIG" in str(error)


def test_scaling_needs_a_load_source(tmp_path: Path) -> None:
    none = "expected at least one of them, found none"
    assert refusal(*KUBERNETES[:3], "--max=2") == f"--pods, --gateway-pods: {none}"
    (tmp_path / "fleet.yaml").write_text("name: fleet\nmodel: m\n")
    text = refusal("autoscale", "ray", str(tmp_path / "fleet.yaml"), "--max=2")
    assert text == f"--metrics, --gateway-metrics: {none}"


def test_metrics_on_ray_have_an_address(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("name: fleet\nmodel: m\n")
    words = ["autoscale", "ray", str(tmp_path / "fleet.yaml"), "--metrics", "job:9249", "--max", "2"]
    assert "--metrics: expected an http:// address, found 'job:9249'" in refusal(*words)
    words[4] = "ftp://me:geheim@job:9249/?token=geheim"
    assert "found 'job:9249/'" in refusal(*words)


def test_only_a_fleet_on_ray_begins_with_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Decider] = []

    async def keep(
        address: str, name: str, read: dict[str, list[str]], decider: Decider, interval_s: float
    ) -> None:
        found.append(decider)

    monkeypatch.setattr(import_module("forebay.cli.autoscale"), "_scale_on_ray", keep)
    (tmp_path / "fleet.yaml").write_text("name: fleet\nmodel: m\n")
    words = ["autoscale", "ray", str(tmp_path / "fleet.yaml"), "--metrics=http://job:9249", "--max=2"]
    assert forebay(*words).exit_code == 0
    found += deciders(ControllerScaling({"engine": 1}, "a=b", ScalingLimits(0, 2))).values()
    assert [decider.begins_with_most for decider in found] == [True, False]
