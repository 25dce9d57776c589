"""What a third-party package may add, and what happens if it is wrong."""

from __future__ import annotations

import doctest
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay import extend
from forebay.errors import ForebayError, SettingError
from forebay.fleet.policies import LeastRequests, make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.pipeline.fingerprint import fingerprint
from forebay.pipeline.job_graph import runs_only_ours
from forebay.pipeline.load import load_spec, parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check_paths, check_secrets
from forebay.settings import Settings

ROOT = Path(__file__).parents[1]
Install = Callable[..., None]
CONNECTOR = """
from forebay import extend
from forebay.errors import SettingError

class Numbers(extend.SourceConnector):
    "Numbers."
    first: int = 0
    token: extend.Secret | None = None

    def ready(self):
        if self.first == 13:
            raise SettingError("first: 13 is unlucky")
        if self.first == 14:
            raise KeyError("fourteen")

    def summary(self):
        return f"numbers from {self.first}"

class Shout(extend.SinkConnector):
    "Loud."

SOURCE = extend.Connector(source=Numbers)
SINK = extend.Connector(sink=Shout)
EMPTY = extend.Connector()
"""
APPLICATION = """
import forebay as fb
from forebay import extend

class Count(fb.Program[int]):
    def initial(self, key):
        return 0

    def on_event(self, state, event, now):
        return fb.Step(state + 1, outputs=(fb.Output(state + 1),))

class Counter(extend.Application):
    "How many events there are under each key."
    step: int = 1

    def program(self, *, event_time):
        if self.step == 0:
            raise ValueError("no step")
        return Count()
"""


def test_public_names_of_extensions() -> None:
    assert extend.__all__ == [
        "Application", "Connector", "FieldPath", "FleetState", "LocalPath", "Preset", "RoutingPolicy",
        "RoutingRequest", "Secret", "SinkConnector", "SourceConnector", "Vector",
    ]  # fmt: skip


@pytest.mark.heavy
def test_extensions_do_not_import_flink() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import forebay.extend, sys; print('pyflink' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout == "False\n"


@pytest.mark.parametrize("name", ["Application", "RoutingPolicy", "SinkConnector", "SourceConnector"])
def test_examples_run(name: str) -> None:
    names = {"fb": fb, "extend": extend, "__name__": "__main__"}
    text = getattr(extend, name).__doc__
    found = doctest.DocTestParser().get_doctest(text, names, f"extend.{name}", None, None)
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


def pipeline(**document: Any) -> dict[str, Any]:
    usual = {"source": {"type": "generator"}, "prompt": "{{ text }}", "sink": {"type": "stdout"}}
    return {"name": "p", **usual, **document}


def test_a_connector_of_a_package_is_settings_like_our_own(
    install_package: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package("forebay.connectors", "numbers_package", CONNECTOR, numbers="SOURCE", shout="SINK")
    spec = parse_spec(pipeline(source={"type": "numbers", "first": 3, "token": {"env": "NUMBERS_TOKEN"}}))
    assert spec.source.summary() == "numbers from 3"
    token = {"env": "NUMBERS_TOKEN", "file": None}
    assert fingerprint(spec) | {"source.first": 3, "source.token": token} == fingerprint(spec)
    monkeypatch.delenv("NUMBERS_TOKEN", raising=False)
    with pytest.raises(SettingError, match=r"^source\.token: environment variable NUMBERS_TOKEN is not set"):
        check_secrets(spec, here=True)
    for source, text in (
        ({"type": "numbers", "frist": 3}, r"source: unknown key 'frist'; did you mean 'first'\?"),
        ({"type": "numbers", "first": "x"}, r"source\.first: expected a whole number.*found 'x'"),
        ({"type": "number"}, r"found 'number'; did you mean 'numbers'\?"),
        ({"type": "shout"}, r"'shout' of the package numbers_package 1\.0 has no source"),
    ):
        with pytest.raises(SettingError, match=text):
            parse_spec(pipeline(source=source))
    with pytest.raises(SettingError, match="has no sink for dead letters"):
        parse_spec(pipeline(dead_letters={"type": "shout"}))


def test_no_code_of_packages_shares_a_core(install_package: Install) -> None:
    install_package("forebay.connectors", "numbers_package", CONNECTOR, numbers="SOURCE", shout="SINK")
    assert runs_only_ours(parse_spec(pipeline()))
    for part in ({"source": {"type": "numbers"}}, {"sink": {"type": "shout"}}):
        assert not runs_only_ours(parse_spec(pipeline(**part)))


def test_missing_requirements_of_a_connector_are_reported_first(
    install_package: Install, tmp_path: Path
) -> None:
    install_package("forebay.connectors", "numbers_package", CONNECTOR, numbers="SOURCE")
    for first, text in (
        (13, "^source: first: 13 is unlucky$"),
        (
            14,
            r"^source: the connector 'numbers' failed in ready\(\): KeyError: 'fourteen'; fix its package$",
        ),
    ):
        spec = parse_spec(pipeline(source={"type": "numbers", "first": first}), base=tmp_path)
        with pytest.raises(SettingError, match=text):
            check_paths(Plan(spec, Settings(tmp_path, tmp_path)))


def test_one_that_does_not_load_is_reported_with_its_line_only_if_named(
    install_package: Install, tmp_path: Path
) -> None:
    install_package("forebay.connectors", "broken", "import not_there", numbers="SOURCE")
    install_package("forebay.connectors", "shapeless", CONNECTOR, empty="EMPTY", number="Numbers")
    install_package("forebay.applications", "lost", "import not_there", counter="Counter")
    install_package("forebay.policies", "gone", "import not_there", nearest="Nearest")
    file = tmp_path / "p.yaml"
    file.write_text("name: p\nprompt: x\nsource: {type: generator}\nsink: {type: stdout}\n")
    assert load_spec(file).source.type == "generator"
    for change, text in (
        ("source.type=numbers", "source: the connector 'numbers' of the package broken 1.0 cannot be loaded"),
        ("source.type=empty", "to be a forebay.extend.Connector with a source, a sink or both"),
        ("source.type=number", "found the class Numbers"),
        ("application.type=counter", "application: the application 'counter' of the package lost 1.0 cannot"),
        ("routing=nearest", "routing: the routing policy 'nearest' of the package gone 1.0 cannot be loaded"),
    ):
        with pytest.raises(SettingError) as told:
            load_spec(file, [change])
        assert text in str(told.value)
    file.write_text("name: p\nprompt: x\nsource:\n  type: numbers\nsink: {type: stdout}\n")
    with pytest.raises(SettingError, match=r"p\.yaml:3: source: the connector 'numbers'"):
        load_spec(file)


def test_an_application_of_a_package(install_package: Install) -> None:
    install_package("forebay.applications", "counting", APPLICATION, counter="Counter")
    document = pipeline(application={"type": "counter"}, key="{{ user }}", prompt=None)
    assert fingerprint(parse_spec(document)) | {"application.step": 1} == fingerprint(parse_spec(document))
    for change, text in (
        ({"key": None}, "key: expected a template with application counter"),
        (
            {"application": {"type": "counter", "step": 0}},
            r"the application 'counter' failed in program\(\): ValueError: no step; fix its package",
        ),
        ({"application": {"type": "counted"}}, "did you mean 'counter'"),
    ):
        with pytest.raises(SettingError, match=text):
            parse_spec({**document, **change})


POLICIES = """
class Nearest:
    def __init__(self, seed):
        self.seed = seed

    def choose(self, demand, cached, fleet, now_s):
        if demand.prompt_tokens == 1:
            raise ZeroDivisionError("oh")
        return demand.prompt_tokens

def fails(seed):
    raise RuntimeError("no map")

def shapeless(seed):
    return 5
"""


@pytest.fixture
def policies(install_package: Install) -> None:
    install_package(
        "forebay.policies", "maps", POLICIES, nearest="Nearest", fails="fails", shapeless="shapeless"
    )


@pytest.mark.usefixtures("policies")
def test_policy_of_a_package_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    fleet = ReplicaTable([ReplicaLimits(str(number)) for number in range(4)])
    fleet.set_available(3, False)
    policy = make_policy("nearest")
    assert policy.choose(RoutingRequest(2), fleet.nothing, fleet, 0.0) == 2
    for tokens, text in (
        (1, r"'nearest' of the package maps 1\.0 failed: ZeroDivisionError: oh"),
        (3, "chose replica 3, which is not available"),
        (4, "chose replica 4"),
        (-1, "chose replica -1"),
    ):
        with pytest.raises(ForebayError, match=text):
            policy.choose(RoutingRequest(tokens), fleet.nothing, fleet, 0.0)
    careful = make_policy("nearest", instead=LeastRequests())
    with caplog.at_level(logging.WARNING):
        chosen = [careful.choose(RoutingRequest(tokens), fleet.nothing, fleet, 0.0) for tokens in (1, 3, 2)]
    assert chosen == [0, 0, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "the routing policy 'nearest' of the package maps 1.0 failed: ZeroDivisionError: oh; "
        "Forebay chooses in its place"
    ]


@pytest.mark.usefixtures("policies")
def test_policy_that_cannot_be_created_is_reported_by_its_key() -> None:
    with pytest.raises(
        SettingError, match=r"'fails' .* could not be created with the seed 0: RuntimeError: no map"
    ):
        parse_spec(pipeline(routing="fails"))
    with pytest.raises(
        SettingError, match="expected a policy with a method choose, found a value of type int"
    ):
        fb.Fleet("http://a:1", routing="shapeless")


ONE_FOLDER = '''
from __future__ import annotations

from typing import Literal

from forebay.connectors.base import Connector, SourceSettings


class Numbers(SourceSettings):
    """Numbers in a row."""

    type: Literal["numbers"]
    first: int = 0


NUMBERS = Connector(Numbers)
'''
ONE_APPLICATION = '''
from __future__ import annotations

from typing import Literal

from forebay.apps.base import ApplicationSettings


class Counter(ApplicationSettings):
    """How many events there are."""

    type: Literal["counter"]
    step: int = 1
'''
ONE_POLICY = '''
class First:
    """The first one that is available."""

    def choose(self, demand, cached, fleet, now_s):
        return fleet.numbers()[0]
'''


@pytest.mark.heavy
def test_each_extension_needs_one_folder_and_one_line(tmp_path: Path) -> None:
    """In a copy of the source: nothing else is necessary."""
    tree = tmp_path / "src" / "forebay"
    shutil.copytree(ROOT / "src" / "forebay", tree, ignore=shutil.ignore_patterns("__pycache__"))

    def add(registry: str, after: str, line: str) -> None:
        text = (tree / registry).read_text()
        assert text.count(after) == 1
        (tree / registry).write_text(text.replace(after, f"{after}\n        {line}"))

    (tree / "connectors" / "numbers").mkdir()
    (tree / "connectors" / "numbers" / "__init__.py").write_text(ONE_FOLDER)
    add("connectors/__init__.py", "    own={", '"numbers": "forebay.connectors.numbers:NUMBERS",')
    (tree / "apps" / "counter").mkdir()
    (tree / "apps" / "counter" / "__init__.py").write_text(ONE_APPLICATION)
    add("apps/__init__.py", "    own={", '"counter": "forebay.apps.counter:Counter",')
    (tree / "fleet" / "first.py").write_text(ONE_POLICY)
    line = '"first": lambda _seed: __import__("forebay.fleet.first").fleet.first.First(),'
    add("fleet/policies.py", "    own={", line)
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: p\nsource: {type: numbers, first: 2}\napplication: {type: counter}\nrouting: first\n"
        "sink: {type: stdout}\n"
    )

    def forebay(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "300"}
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    shown = forebay("forebay", "run", str(file), "--dry-run")
    assert "type: numbers\n  first: 2\n" in shown, shown
    assert "type: counter\n  step: 1\n" in shown
    assert "routing: first" in shown
    assert "an application: counter, sessions" in forebay("forebay", "run", "--help")
    assert "did you mean 'numbers'" in forebay("forebay", "run", str(file), "--set", "source.type=numbrs")
    (tmp_path / "page.md").write_text("")
    forebay("tools.key_reference", "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "### `source` with `type: numbers`" in page
    assert "### `application` with `type: counter`" in page
