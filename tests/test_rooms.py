"""A newcomer can draw the package from memory: few rooms, each with its purpose and what it may import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "forebay"
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


def test_at_most_sixteen_rooms() -> None:
    assert len(ROOMS) <= 16


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_room_states_purpose_and_imports(room: Path) -> None:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    # A docstring that also explains a registry may be longer.
    assert 2 <= len(text.splitlines()) <= 8
    assert "ay import" in text or "import from" in text


IMPORT_ALL = """
import pkgutil
from importlib import import_module

for package in map(import_module, ("forebay", "benchmarks")):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            try:
                import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in {"ray", "transformers"}:
                    raise
"""


@pytest.mark.heavy
def test_every_module_can_be_imported() -> None:
    """Type checkers do not see that a name of a type is needed at run time."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_ALL],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_names_of_tests_have_less_than_70_characters() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py")]
    names = [name for text in texts for name in re.findall(r"def (test_\w+)", text)]
    assert [name for name in names if len(name) >= 70] == []
