"""Adds what pip does not know to `build/sbom.json`: Java, Flink's jars and what they contain, models.

`make sbom` runs it. With `--audit`, which `make audit` runs, it asks osv.dev for known vulnerabilities of
the jars' parts instead.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyflink

from forebay.apps.topics import embedding
from forebay.engine.launch import environment
from forebay.flink.java import java_home
from forebay.settings import load_settings

SBOM = Path("build/sbom.json")
OSV = "https://api.osv.dev/v1/querybatch"
VULNERABLE = "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1"
TIMEOUT_S = 60.0
MAX_AT_ONCE = 500
BUNDLED = re.compile(r"^ *- *([\w.-]+):([\w.-]+):([\w.-]+)", re.M)
"""A line of a NOTICE: a part with its own coordinates."""
FLINKS = re.compile(r"(flink-[a-z0-9._-]+?)-([0-9][\w.-]*)\.jar")

Component = dict[str, Any]


def jars() -> list[Path]:
    """Flink's, and the installed connectors."""
    home = Path(pyflink.__file__).parent
    installed = load_settings().connectors
    return [
        *sorted(home.glob("lib/*.jar")),
        *sorted(home.glob("opt/*.jar")),
        *sorted(installed.rglob("*.jar")),
    ]


def parts_of(jar: Path) -> Iterator[str]:
    """Package URLs of a jar and of what its NOTICE and Maven's files name."""
    if own := FLINKS.fullmatch(jar.name):
        yield f"pkg:maven/org.apache.flink/{own[1]}@{own[2]}"
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name == "META-INF/NOTICE":
                for found in BUNDLED.findall(archive.read(name).decode("utf-8", "replace")):
                    yield "pkg:maven/{}/{}@{}".format(*found)
            elif re.fullmatch(r"META-INF/maven/.+/pom\.properties", name):
                lines = archive.read(name).decode("utf-8", "replace").splitlines()
                detail = dict(line.split("=", 1) for line in lines if "=" in line)
                yield f"pkg:maven/{detail['groupId']}/{detail['artifactId']}@{detail['version']}"


def components() -> Iterator[Component]:
    found = jars()
    for jar in found:
        yield _component("file", jar.name, sha256=hashlib.sha256(jar.read_bytes()).hexdigest())
    for purl in sorted({purl for jar in found for purl in parts_of(jar)}):
        name, _, version = purl.removeprefix("pkg:maven/").partition("@")
        yield _component("library", name, version) | {"purl": purl, "bom-ref": purl}
    release = (java_home() / "release").read_text()
    version = re.findall(r'JAVA_VERSION="([\w.]+)"', release)[0]
    cpe = f"cpe:2.3:a:oracle:openjdk:{version}:*:*:*:*:*:*:*"
    yield _component("platform", "openjdk", version) | {"cpe": cpe}
    name, _, version = environment.PACKAGE.partition("==")
    yield _component("machine-learning-model", name, version, environment.SHA256)
    yield _component("machine-learning-model", embedding.PACKAGE, embedding.VERSION, embedding.SHA256)


def _component(kind: str, name: str, version: str = "", sha256: str = "") -> Component:
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    return {"type": kind, "name": name, **({"version": version} if version else {}), **hashes}


def vulnerabilities(purls: Sequence[str], url: str = OSV) -> dict[str, list[str]]:
    """The ids of known vulnerabilities by package. Raises `ValueError` if the service does not know one that
    everybody knows, `OSError` if it is not reached.
    """
    found: dict[str, list[str]] = {}
    asked = [VULNERABLE, *purls]
    for begin in range(0, len(asked), MAX_AT_ONCE):
        some = asked[begin : begin + MAX_AT_ONCE]
        body = json.dumps({"queries": [{"package": {"purl": purl}} for purl in some]}).encode()
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            results = json.load(answer)["results"]
        for purl, result in zip(some, results, strict=True):
            if ids := [one["id"] for one in result.get("vulns", [])]:
                found[purl] = ids
    if not found.pop(VULNERABLE, None):
        raise ValueError(f"{url} does not report those of {VULNERABLE}: nothing was audited")
    return found


def add_to(sbom: Path, more: Iterable[Component]) -> None:
    document = json.loads(sbom.read_text())
    document["components"] = [*document.get("components", []), *more]
    sbom.write_text(json.dumps(document, indent=2))


def audit() -> int:
    purls = sorted({purl for jar in jars() for purl in parts_of(jar)})
    try:
        found = vulnerabilities(purls)
    except (OSError, ValueError, KeyError) as error:
        print(f"jars: {error}", file=sys.stderr)
        return 1
    for purl, ids in found.items():
        print(f"{purl}: {', '.join(ids)}")
    print(f"{len(purls)} parts of jars, {len(found)} with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--audit"]:
        sys.exit(audit())
    add_to(SBOM, components())
