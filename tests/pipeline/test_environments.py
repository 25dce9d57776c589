"""Only processes that need a pipeline's secrets have them in their environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from benchmarks.feeds import FeedServer, serve
from tests.harness.homes import new_home

from forebay.engine.launch import local_replicas
from forebay.engine.launch.environment import DEFAULT_MODEL, RECIPE, recipe
from forebay.fields import secret_variables
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import STANDARD_SECRETS, Settings, load_settings
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.heavy

ENGINE_KEY, FEED_TOKEN = "sk-engine-40c1d2", "Bearer feed-77aa19"
STANDARD = {name: f"standard-{name}" for name in STANDARD_SECRETS}
SECRETS = {"ENGINE_KEY": ENGINE_KEY, "FEED_TOKEN": FEED_TOKEN, **STANDARD}
ROLES = {
    "forebay.engine.launch.supervisor": "supervisor of the engine",
    "forebay.testing.replica": "engine",
    "forebay.pipeline.flink_main": "Flink's client",
    "org.apache.flink": "Flink's JVM",
    "forebay": "the command",
}
NEED_SECRETS = {"the command", "Flink's client", "Flink's JVM"}
"""The command queries the engine's models, object stores and Ray clusters; the JVM uses all of them and the
feed; the client starts the JVM.
"""

STAND_IN = """#!{python}
# In the place of the engine's Python: notes its environment, and serves instead of vLLM.
import json, os, pathlib, sys
words = sys.argv[1:]
script = pathlib.Path(words[1]).stem
pathlib.Path({notes!r}, f"{{script}}-{{os.getpid()}}.json").write_text(json.dumps(dict(os.environ)))
if script == "as_main":
    given = dict(zip(words[3::2], words[4::2]))
    command = [sys.executable, "-m", "forebay.testing.replica", "--port", given["--port"]]
    os.execv(sys.executable, [*command, "--model", given["--served-model-name"]])
print(json.dumps({{"bfloat16": 5.0, "float32": 75.0}}))
"""


def local_engine(home: Path, notes: Path) -> None:
    """A home with a fake engine installed."""
    python = home / "engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN.format(python=sys.executable, notes=str(notes)))
    python.chmod(0o700)
    model = home / "models" / DEFAULT_MODEL
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    for folder, made_by in ((home / "engine", recipe()), (model, RECIPE)):
        (folder / "forebay-ready.json").write_text(json.dumps({"recipe": made_by}))


def role(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    return next((text for mark, text in ROLES.items() if mark in words), words)


def tree(process: psutil.Process) -> dict[str, set[str]]:
    """By role, the secrets' values in any of its processes' environments, under any name."""
    found: dict[str, set[str]] = {}
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            values = one.environ().values()
            held = {name for name, secret in SECRETS.items() if any(secret in value for value in values)}
            found.setdefault(role(one), set()).update(held)
    return found


@pytest.mark.flink
@pytest.mark.slow
@pytest.mark.parametrize("replicas", ["1", pytest.param("0..1", marks=pytest.mark.long)])
def test_secrets_reach_only_processes_that_need_them(replicas: str, tmp_path: Path) -> None:
    home, notes, log = new_home(tmp_path / "home"), tmp_path / "notes", tmp_path / "said"
    notes.mkdir()
    local_engine(home, notes)
    with serve(FeedServer([{"text": "a post"}])) as feed, log.open("wb") as message:
        pipeline = {
            "name": "p",
            "prompt": "{{ text }}",
            "source": {
                "type": "sse",
                "url": feed.events_url,
                "headers": {"Authorization": {"env": "FEED_TOKEN"}},
            },
            "engine": {"api_key": {"env": "ENGINE_KEY"}},
            "sink": {"type": "jsonl", "path": "out"},
            "checkpoint": {"interval_s": 0.5},
        }
        (tmp_path / "p.yaml").write_text(json.dumps(pipeline))
        run = subprocess.Popen(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--replicas", replicas],
            cwd=tmp_path,
            env={**os.environ, **SECRETS, "FOREBAY_HOME": str(home)},
            stdout=message,
            stderr=message,
        )
        try:
            answered = lambda: any((tmp_path / "out").rglob("part-*"))  # noqa: E731
            wait_until(lambda: run.poll() is not None or answered(), timeout_s=180.0)
            assert run.poll() is None, log.read_text()[-3000:]
            found = tree(psutil.Process(run.pid))
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(200)
    assert found.keys() == set(ROLES.values())
    assert {which for which, secrets in found.items() if secrets} == NEED_SECRETS
    assert found["Flink's JVM"] == set(SECRETS)
    noted = {path.stem.rpartition("-")[0]: path.read_text() for path in notes.iterdir()}
    assert noted.keys() == {"as_main", "probe_dtype"}
    assert [(which, name) for which, text in noted.items() for name in SECRETS if SECRETS[name] in text] == []


def test_engines_own_key_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_engine(tmp_path / "home", tmp_path)
    monkeypatch.setenv("VLLM_API_KEY", ENGINE_KEY)
    monkeypatch.setenv("FEED_TOKEN", FEED_TOKEN)
    named = frozenset({"VLLM_API_KEY", "FEED_TOKEN"})
    with local_replicas(settings=Settings(tmp_path / "home", Path(), secret_variables=named)):
        [server], [probe] = (tmp_path.glob(f"{script}-*.json") for script in ("as_main", "probe_dtype"))
        assert named & json.loads(server.read_text()).keys() == {"VLLM_API_KEY"}
        assert not named & json.loads(probe.read_text()).keys()


def test_standard_secrets_never_reach_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local_engine(tmp_path / "home", tmp_path)
    for name, value in STANDARD.items():
        monkeypatch.setenv(name, value)
    # As `forebay engine` and `forebay ask` start it, which know no pipeline.
    with local_replicas(settings=load_settings({"FOREBAY_HOME": str(tmp_path / "home")})):
        noted = [path.read_text() for path in tmp_path.glob("*.json")]
    assert len(noted) == 2
    assert [name for text in noted for name in STANDARD if STANDARD[name] in text] == []


def test_secret_variables_are_found_in_every_setting() -> None:
    spec = PipelineSpec.model_validate(
        {
            "name": "p",
            "prompt": "{{ text }}",
            "source": {
                "type": "kafka",
                "bootstrap": "k:9092",
                "topics": ["t"],
                "secrets": {"sasl.jaas.config": {"env": "READ_JAAS"}, "ssl.key.password": {"file": "/f"}},
                "format": "registry",
                "registry": {"url": "https://registry", "auth": {"env": "REGISTRY"}},
            },
            "engine": {"url": "http://e", "api_key": {"env": "ENGINE_KEY"}},
            "sink": {
                "type": "kafka",
                "bootstrap": "k:9092",
                "topic": "results",
                "secrets": {"sasl.jaas.config": {"env": "WRITE_JAAS"}},
            },
        }
    )
    assert secret_variables(spec) == {"READ_JAAS", "REGISTRY", "ENGINE_KEY", "WRITE_JAAS"}
    assert secret_variables(None) == frozenset()
