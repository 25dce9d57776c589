from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.engine.launch import Silent, environment
from forebay.engine.launch.environment import engine_python, ensure_environment, environment_ready
from forebay.errors import SettingError, SetupError
from forebay.files import locked
from forebay.settings import Settings

# A Python that records its arguments, and fails if a line of `failing` is part of them.
PYTHON = f"""#!{sys.executable} -I
import os, pathlib, shutil, sys

if "ENGINE_KEY" in os.environ:
    sys.exit("a secret that nothing here needs")
asked, home = " ".join(sys.argv[1:]), pathlib.Path(@HOME@)
with (home / "asked").open("a") as file:
    file.write(asked.replace("\\n", " ") + "\\n")
for part in (home / "failing").read_text().splitlines():
    if part in asked:
        sys.exit(f"ERROR: no luck with {{part}}")
if "-m venv" in asked:
    target = pathlib.Path(sys.argv[-1]) / "bin"
    target.mkdir(parents=True)
    shutil.copy(home / "python", target / "python")
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("@HOME@", repr(str(tmp_path))))
    python.chmod(0o755)
    (tmp_path / "failing").write_text("")
    return Settings(home=tmp_path / "home", python=python)


def asked(settings: Settings) -> list[str]:
    path = settings.python.with_name("asked")
    return path.read_text().splitlines() if path.exists() else []


def failing(settings: Settings, *parts: str) -> None:
    settings.python.with_name("failing").write_text("\n".join(parts))


@pytest.mark.heavy
def test_first_working_installation_is_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    settings = replace(settings, secret_variables=frozenset({"ENGINE_KEY"}))
    assert not environment_ready(settings)
    ensure_environment(settings, Silent())
    assert environment_ready(settings)
    steps = asked(settings)
    assert "-m venv" in steps[0]
    installs = [step for step in steps if "pip" in step]
    assert [step.rpartition("/")[2] for step in installs] == ["torch-cpu.txt", "engine.txt"]
    assert all("install --no-input --no-deps --require-hashes --only-binary" in step for step in installs)
    assert "current_platform.is_cpu()" in steps[-1]
    assert not any("--index-url" in step for step in steps)
    ensure_environment(settings, Silent())
    assert asked(settings) == steps, "what is ready is not made again"


@pytest.mark.parametrize("inner", [False, True])
def test_engine_that_others_may_have_planted_is_not_run(settings: Settings, inner: bool) -> None:
    ensure_environment(settings, Silent())
    steps = asked(settings)
    (settings.engine_env if inner else settings.home).chmod(0o777)
    with pytest.raises(SettingError, match=r"others may write to .*chmod go-w"):
        ensure_environment(settings, Silent())
    assert asked(settings) == steps


@pytest.mark.heavy
def test_pypi_alone_is_enough_without_a_cpu_torch_index(settings: Settings) -> None:
    failing(settings, "torch-cpu.txt")
    ensure_environment(settings, Silent())
    assert environment_ready(settings)
    steps = asked(settings)
    assert sum("-m venv" in step for step in steps) == 3, "each way starts from nothing"
    assert re.search(r"--require-hashes .* -r \S+/engine.txt -r \S+/torch.txt$", steps[-2])


@pytest.mark.heavy
def test_failing_import_leads_to_the_next_installation(settings: Settings) -> None:
    failing(settings, "current_platform.is_cpu()")
    with pytest.raises(SetupError, match=r"in any of 3 ways[\s\S]*PyPI alone:[\s\S]*ERROR: no luck"):
        ensure_environment(settings, Silent())
    assert not environment_ready(settings)
    failing(settings)
    ensure_environment(settings, Silent())
    assert environment_ready(settings)


@pytest.mark.heavy
def test_interrupted_installation_is_repeated(settings: Settings) -> None:
    engine_python(settings).parent.mkdir(parents=True)
    (settings.engine_env / "half").write_text("")
    engine_python(settings).write_text("")
    assert not environment_ready(settings)
    ensure_environment(settings, Silent())
    assert not (settings.engine_env / "half").exists()


class Told:
    """Records the titles of steps; the first one that waits releases `held`."""

    def __init__(self, held: ExitStack) -> None:
        self.titles: list[str] = []
        self._held = held

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        self.titles.append(title)
        self._held.close()
        yield lambda line: None


def test_second_set_up_reports_that_it_waits(settings: Settings) -> None:
    with ExitStack() as held:
        held.enter_context(locked(settings.home / "engine.lock"))
        told = Told(held)
        ensure_environment(settings, told)
    assert told.titles[0] == environment.WAITING
    assert environment_ready(settings)


def test_changed_recipe_repeats_the_installation(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_environment(settings, Silent())
    monkeypatch.setattr(environment, "recipe", lambda: "3 something newer")
    assert not environment_ready(settings)


def test_full_disk_is_reported_first(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", 2**62)
    with pytest.raises(SetupError, match="set FOREBAY_HOME"):
        ensure_environment(settings, Silent())
    assert asked(settings) == []


def test_missing_python_is_named(settings: Settings) -> None:
    with pytest.raises(SetupError, match="/no/such/python cannot be run: No such file"):
        ensure_environment(replace(settings, python=Path("/no/such/python")), Silent())
