from __future__ import annotations

import inspect
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from forebay import cli
from forebay.cli.engine import taken_ports, up
from forebay.cli.setup import announce_install
from forebay.engine.launch import EngineOptions, LocalReplica, machine_registry
from forebay.engine.launch.environment import engine_python, recipe
from forebay.files import write_stamp
from forebay.settings import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    return tmp_path


def register_dead(log: Path = Path("the.log"), port: int = 8100) -> LocalReplica:
    dead = LocalReplica(
        id=str(port), url=f"http://127.0.0.1:{port}", port=port, model="m", log=log, pid=2**30, born_s=1.0,
        owner_pid=1, kept=True,
    )  # fmt: skip
    with machine_registry(load_settings()).changing() as registered:
        registered[dead.id] = dead
    return dead


def test_status_shows_what_died_and_down_clears_it() -> None:
    run, app = CliRunner().invoke, cli.application()
    register_dead()
    (shown,) = json.loads(run(app, ["engine", "status", "--json"]).stdout)["replicas"]
    assert (shown["state"], shown["url"]) == ("dead", "http://127.0.0.1:8100")
    assert "dead" in run(app, ["engine", "status"]).stdout
    assert json.loads(run(app, ["engine", "down", "--json"]).stdout) == {"ended": ["http://127.0.0.1:8100"]}
    assert "No replicas" in run(app, ["engine", "status"]).stdout
    assert "0 replica" in run(app, ["engine", "down"]).stdout


def test_down_ends_those_that_are_named() -> None:
    run, app = CliRunner().invoke, cli.application()
    one, other = register_dead().url, register_dead(port=8102).url
    error = run(app, ["engine", "down", "http://127.0.0.1:8101"]).exception
    assert str(error) == (
        f"forebay engine down: `up` did not start a replica 'http://127.0.0.1:8101'; found: {one}, {other}"
    )
    assert json.loads(run(app, ["engine", "down", f"{other}/", "--json"]).stdout) == {"ended": [other]}
    assert json.loads(run(app, ["engine", "down", "--json"]).stdout) == {"ended": [one]}


def test_narrow_terminal_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    log = register_dead(Path("/a/home", *(f"folder-{n}" for n in range(12)), "replica.log")).log
    first, *more = CliRunner().invoke(cli.application(), ["engine", "status"]).stdout.splitlines()[1:]
    pieces = [first.split()[-1], *(line.split()[-1] for line in more)]
    assert len(pieces) > 2
    assert "".join(pieces) == str(log)


def test_doctor_fails_if_a_requirement_is_missing() -> None:
    result = CliRunner().invoke(cli.application(), ["doctor", "--json"])
    assert result.exit_code == 1
    verdicts = {finding["subject"]: finding["verdict"] for finding in json.loads(result.stdout)["findings"]}
    assert verdicts["engine environment"] == "missing"
    assert "forebay setup" in CliRunner().invoke(cli.application(), ["doctor"]).stdout


def test_the_defaults_that_are_shown_are_those_of_the_engine() -> None:
    """They are duplicated, so that `--help` need not import the launcher."""
    shown = {name: one.default for name, one in inspect.signature(up).parameters.items()}
    options = EngineOptions()
    for name in ("model", "port_base", "max_model_len", "max_num_seqs", "eager", "timeout_s"):
        assert shown[name] == getattr(options, name), name


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([8100, 8101], ""),
        ([8101], "in use: 8100; using the next free ports: 8101"),
        ([8100, 8103], "in use: 8101, 8102; using the next free ports: 8100, 8103"),
    ],
)
def test_chosen_ports_are_named(found: list[int], said: str) -> None:
    assert taken_ports(found, 8100) == said


def test_invalid_option_is_one_sentence_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["forebay", "engine", "up", "--cores", "x"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == ("forebay: cores are 'x'; expected numbers and ranges such as 0-3,6\n")


def test_an_installation_is_announced_before_it_begins(home: Path) -> None:
    out = StringIO()
    announce_install(load_settings(), Console(file=out))
    assert "some minutes" in out.getvalue()
    settings = load_settings()
    engine_python(settings).parent.mkdir(parents=True)
    engine_python(settings).touch()
    write_stamp(settings.engine_env / "forebay-ready.json", {"recipe": recipe()})
    ready = StringIO()
    announce_install(settings, Console(file=ready))
    assert ready.getvalue() == ""
