"""`forebay deploy ray`, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from forebay.cli import application
from forebay.errors import DeployError, SettingError
from forebay.ports import free_port


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("name: fleet\nmodel: org/model\n")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(application(), ["deploy", "ray", "fleet.yaml", *words])


def test_config_is_printed_to_standard_output() -> None:
    done = run("--set", "replicas=3")
    assert done.exit_code == 0, done.output
    (found,) = YAML(typ="safe").load(done.stdout)["applications"]
    assert (found["name"], found["deployments"][0]["num_replicas"]) == ("fleet", 3)


def test_into_a_folder(folder: Path) -> None:
    assert run("--out", "ray").exit_code == 0
    text = (folder / "ray" / "serve.yaml").read_text()
    assert text.startswith("# Made by `forebay deploy ray`")
    assert YAML(typ="safe").load(text)["proxy_location"] == "Disabled"


def test_one_action_at_a_time() -> None:
    done = run("--apply", "--remove")
    assert isinstance(done.exception, SettingError)
    assert "found --apply and --remove" in str(done.exception)


@pytest.mark.parametrize("words", [("--apply",), ("--status",), ("--remove",), ("--replicas", "2")])
def test_no_cluster_at_the_address(words: tuple[str, ...]) -> None:
    done = run(*words, "--address", f"http://127.0.0.1:{free_port()}")
    assert isinstance(done.exception, DeployError)
    assert "there is no Ray cluster" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (("--apply",), True),
        (("--apply", "--set", "address=http://127.0.0.1:1"), False),
        (("--apply", "--address", "http://127.0.0.1:1"), False),
        (("--status",), False),
    ],
)
def test_cluster_is_started_if_none_is_named(
    words: tuple[str, ...], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def start(address: str, note: Any) -> bool:
        asked.append(address)
        raise DeployError("started")

    monkeypatch.setattr("forebay.deploy.ray.local_cluster.start_local_cluster", start)
    done = run(*words)
    assert isinstance(done.exception, DeployError) or not starts
    assert asked == (["http://127.0.0.1:8265"] if starts else [])


def test_as_a_document() -> None:
    document = json.loads(run("--json").stdout)
    assert document["config"]["applications"][0]["name"] == document["name"] == "fleet"
