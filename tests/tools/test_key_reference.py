"""docs/pipeline.md matches the code, and its examples and those in examples/ load."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools.key_reference import BEGIN, END, updated

from forebay.connectors.files.settings import JsonlSource
from forebay.deploy.kubernetes import DeploymentSpec
from forebay.deploy.ray.config import RayFleetSpec
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.load import load_spec
from forebay.pipeline.spec import PipelineSpec

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize(
    ("page", "spec"),
    [
        ("pipeline.md", PipelineSpec),
        ("gateway.md", GatewaySpec),
        ("deployment.md", DeploymentSpec),
        ("how-to/ray.md", RayFleetSpec),
    ],
)
def test_the_reference_is_up_to_date(page: str, spec: Any) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert BEGIN in text
    assert updated(text, spec) == text, f"run: python -m tools.key_reference docs/{page}"


@pytest.mark.parametrize("page", ["pipeline.md", "gateway.md", "deployment.md", "how-to/ray.md"])
def test_no_table_of_keys_is_on_a_page_twice(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    headings = re.findall(r"^### .*$", text, re.M)
    assert len(tables) == len(set(tables))
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_and_their_input_fits(path: Path) -> None:
    spec = load_spec(path)
    if not isinstance(spec.source, JsonlSource) or spec.application is not None:
        return
    lines = Path(spec.source.path).read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 30
    key, id, event_time = spec.key_template(), spec.id_template(), spec.source.event_time()
    assert id is not None
    ids = set()
    for line in lines:
        fields = json.loads(line)
        assert spec.prompt_template().render(fields)
        ids.add(id.render(fields))
        if key is not None:
            assert key.render(fields)
        if event_time is not None:
            assert event_time.of(fields) > 0
    assert len(ids) == len(lines)
