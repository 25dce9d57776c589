from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.flink.java import BUNDLED, java_home
from forebay.flink.jvm import java_environment


def java(folder: Path, release: str) -> Path:
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text("")
    (folder / "release").write_text(release)
    return folder


def test_installed_java_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_JAVA_HOME", raising=False)
    assert java_home() == BUNDLED
    assert java_environment(Path("logs"), 256)["JAVA_HOME"] == str(BUNDLED)


@pytest.mark.parametrize("version", ["21.0.8", "21.0.9", "21.0.12", "21.1"])
def test_newer_java_21_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv(
        "FOREBAY_JAVA_HOME", str(java(tmp_path, f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n'))
    )
    assert java_environment(Path("logs"), 256)["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize("version", ["21.0.7", "21", "17.0.12", "22", "25.0.2", "1.8.0_402"])
def test_other_java_version_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("FOREBAY_JAVA_HOME", str(java(tmp_path, f'JAVA_VERSION="{version}"\n')))
    with pytest.raises(
        SettingError, match=r"FOREBAY_JAVA_HOME=.*21\.0\.8 or a newer Java 21, found " + version[:2]
    ):
        java_home()


def test_relative_folder_is_resolved_against_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path, 'JAVA_VERSION="21.0.9"\n')
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("FOREBAY_JAVA_HOME", tmp_path.name)
    # A JVM is started in another folder.
    assert java_home() == tmp_path


def test_folder_without_java_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingError, match="no Java with a file `release`"):
        java_home()
