"""Environments of peers: created once, replaced for other versions; failures are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.peers.base import Peer
from benchmarks.peers.environments import ensure_environment, environment_of, versions

from benchmarks.peers import environments
from forebay.engine.launch import Silent
from forebay.settings import Settings, load_settings

PEER = Peer("made_up", "Made up", "made_up.py", docs="none", requirements="made_up.txt")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "requirements").mkdir()
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path / "requirements")
    return load_settings({"FOREBAY_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})


def requirements(settings: Settings, text: str) -> None:
    (settings.home.parent / "requirements" / "made_up.txt").write_text(text)


@pytest.mark.long
@pytest.mark.slow
def test_an_environment_is_made_once_for_the_same_versions(settings: Settings) -> None:
    requirements(settings, "")
    python = ensure_environment(PEER, settings, Silent())
    assert versions(python, ["pip", "apache-flink"]).keys() == {"python", "pip"}
    made = python.parent.parent / "pyvenv.cfg"
    mark = made.parent / "left-there"
    mark.touch()
    assert ensure_environment(PEER, settings, Silent()) == python
    assert mark.exists()
    requirements(settings, "# other versions\n")
    ensure_environment(PEER, settings, Silent())
    assert not mark.exists()


def test_a_peer_without_requirements_runs_here(settings: Settings) -> None:
    peer = Peer("here", "Here", "here.py", docs="none")
    assert ensure_environment(peer, settings, Silent()) == Path(sys.executable)


def test_nothing_leads_from_a_peers_environment_into_this_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" not in environment_of(PEER, settings)
    assert (
        environment_of(Peer("here", "Here", "here.py", docs="none"), settings)["PYTHONPATH"] == "/somewhere"
    )


def test_every_peer_has_the_java_that_forebay_brings(settings: Settings) -> None:
    java = Path(environment_of(PEER, settings)["JAVA_HOME"])
    assert (java / "bin" / "java").is_file()
