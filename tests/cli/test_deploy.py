"""`forebay deploy kubernetes`."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest
from benchmarks.kubernetes.plane import ControlPlane
from ruamel.yaml import YAML
from tests.cli.commands import refusal
from tests.harness.deployments import PIPELINE, VARIANTS
from typer.testing import CliRunner, Result

from forebay.cli import application


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_bytes(orjson.dumps(PIPELINE))
    (tmp_path / "deploy.yaml").write_bytes(orjson.dumps(VARIANTS["everything"]))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(application(), ["deploy", "kubernetes", "p.yaml", *words])


@pytest.mark.heavy
def test_manifests_are_printed_to_standard_output() -> None:
    done = run()
    assert done.exit_code == 0, done.output
    kinds = [each["kind"] for each in YAML(typ="safe").load_all(done.stdout)]
    assert "FlinkDeployment" in kinds


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"max": 4}, None),
        ({"max": 3}, None),
        ({"max": 8}, "scaling.max: the pipeline file asks for up to 8 replicas, but the deployment file"),
        ({"max": 1}, "scaling.min: the deployment file keeps at least 2 replicas, and the pipeline file"),
    ],
)
def test_mismatching_replica_ranges_are_warned_about(
    folder: Path, scaling: dict[str, int], said: str | None
) -> None:
    (folder / "p.yaml").write_bytes(orjson.dumps({**PIPELINE, "scaling": scaling}))
    done = run("--set", "scaling.min=2", "--set", "scaling.max=4", "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["warnings"] or [None]
    assert found is None if said is None else found.startswith(said)
    assert ("warning: scaling." in done.stderr) is (said is not None)


@pytest.mark.heavy
def test_into_a_folder_with_dockerfiles_and_without_removed_parts(folder: Path) -> None:
    assert run("--out", "k8s").exit_code == 0
    (folder / "k8s" / "mine.yaml").write_text("kept")
    assert (folder / "k8s" / "gateway.yaml").exists()
    assert {path.name for path in (folder / "k8s" / "images").iterdir()} == {
        "gateway.Dockerfile",
        "pipeline.Dockerfile",
    }
    done = run(
        "--out", "k8s", "--set", "gateway=null", "--set", "pipeline.state=s3://bucket/prod", "-n", "prod"
    )
    assert done.exit_code == 0, done.output
    assert not (folder / "k8s" / "gateway.yaml").exists()
    assert [path.name for path in (folder / "k8s" / "images").iterdir()] == ["pipeline.Dockerfile"]
    dockerfile = (folder / "k8s" / "images" / "pipeline.Dockerfile").read_text()
    assert "\nCOPY flink-sql-connector-kafka-" in dockerfile
    assert (folder / "k8s" / "mine.yaml").read_text() == "kept"
    listed = YAML(typ="safe").load(folder / "k8s" / "kustomization.yaml")
    assert listed["namespace"] == "prod"
    for name in listed["resources"]:
        assert list(YAML(typ="safe").load_all((folder / "k8s" / name).read_text()))


def test_a_gateway_without_a_pipeline(folder: Path) -> None:
    (folder / "deploy.yaml").write_bytes(orjson.dumps(VARIANTS["gateway alone"]))
    done = CliRunner().invoke(application(), ["deploy", "kubernetes", "--out", "k8s"])
    assert done.exit_code == 0, done.output
    listed = YAML(typ="safe").load(folder / "k8s" / "kustomization.yaml")
    assert listed["resources"] == ["engine.yaml", "gateway.yaml", "monitoring.yaml", "scaling.yaml"]
    assert [path.name for path in (folder / "k8s" / "images").iterdir()] == ["gateway.Dockerfile"]


def test_on_a_cluster(control_plane: ControlPlane, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    control_plane.kubectl("create", "namespace", "cli")
    everything = VARIANTS["everything"]
    pipeline = {**everything["pipeline"], "state": "s3://bucket/triage/{namespace}"}
    (folder / "deploy.yaml").write_bytes(orjson.dumps({**everything, "pipeline": pipeline}))
    done = run("--dry-run", "-n", "cli")
    assert done.exit_code == 0, done.output
    assert "FlinkDeployment triage: valid (dry run)" in done.stderr
    report = json.loads(run("--apply", "-n", "cli", "--json").stdout)
    assert report["namespace"] == "cli"
    assert {each["action"] for each in report["done"]} == {"created"}
    assert "FlinkDeployment triage: removed" in run("--remove", "-n", "cli").stderr
    assert "found nothing of triage in the namespace cli" in run("--remove", "-n", "cli").stderr


def test_one_thing_at_a_time() -> None:
    assert "--apply" in refusal("deploy", "kubernetes", "p.yaml", "--apply", "--remove")


def test_as_a_document() -> None:
    document = json.loads(run("--json").stdout)
    assert document["instance"] == "triage"
    assert any(each["kind"] == "ScaledObject" for each in document["manifests"])
