"""The gateway's settings: the keys of a file, and the errors for wrong ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.fleet.discovery import DnsReplicas, FileReplicas, FixedReplicas
from forebay.fleet.endpoints import KubernetesReplicas
from forebay.gateway.serve import listen, make_gateway
from forebay.gateway.spec import GatewaySpec, load_gateway

URL = "http://127.0.0.1:9"


def load(folder: Path, text: str, *engines: str) -> GatewaySpec:
    (folder / "gateway.yaml").write_text(text)
    return load_gateway(folder / "gateway.yaml", engines)


def test_replicas_from_the_command_line_alone() -> None:
    spec = load_gateway(None, (URL, "http://127.0.0.1:10/v1"))
    assert spec.engine.replicas() == FixedReplicas((URL, "http://127.0.0.1:10"))
    assert (spec.routing, spec.keys, spec.limits.max_body_bytes) == ("expected_ttft", (), 32 << 20)


def test_every_source_of_replicas(tmp_path: Path) -> None:
    assert load(tmp_path, f"engine: {URL}").engine.replicas() == FixedReplicas((URL,))
    assert load(tmp_path, "engine: {file: urls}").engine.replicas() == FileReplicas(str(tmp_path / "urls"))
    assert load(tmp_path, f"engine: {{dns: {URL}}}").engine.replicas() == DnsReplicas(URL)


def test_command_line_replaces_the_files_replicas(tmp_path: Path) -> None:
    spec = load(tmp_path, "engine: {file: urls, model: m}\nrouting: round_robin", URL)
    assert spec.engine.replicas() == FixedReplicas((URL,))
    assert (spec.fleet().model, spec.fleet().routing) == ("m", "round_robin")


def test_every_source_of_prefill_servers(tmp_path: Path) -> None:
    for prefill, replicas in {
        URL: FixedReplicas((URL,)),
        f"[{URL}]": FixedReplicas((URL,)),
        "{file: urls}": FileReplicas(str(tmp_path / "urls")),
        f"{{dns: {URL}}}": DnsReplicas(URL),
        "{kubernetes: prefill:http}": KubernetesReplicas("prefill:http"),
    }.items():
        text = f"engine: {{url: 'http://127.0.0.1:10', model: m, api_key: {{env: K}}, prefill: {prefill}}}"
        spec = load(tmp_path, text)
        found = spec.prefill_fleet()
        assert found is not None
        assert found.replicas == replicas
        assert (found.model, found.api_key) == (spec.fleet().model, spec.fleet().api_key)
    assert load(tmp_path, f"engine: {URL}").prefill_fleet() is None


def test_prefill_servers_from_the_command_line(tmp_path: Path) -> None:
    """Other replicas leave those of the file out: they are not known to belong to them."""
    other = "http://127.0.0.1:10"
    spec = load_gateway(None, (URL,), (other,))
    assert spec.engine.prefill is not None
    assert spec.engine.prefill.replicas() == FixedReplicas((other,))
    text = f"engine: {{url: {URL}, model: m, prefill: {{file: urls}}}}"
    assert load(tmp_path, text, URL).engine.prefill is None
    for file in (text, f"engine: {URL}", f"engine: [{URL}]"):
        (tmp_path / "gateway.yaml").write_text(file)
        spec = load_gateway(tmp_path / "gateway.yaml", (), (other,))
        assert spec.engine.replicas() == FixedReplicas((URL,))
        assert spec.engine.prefill is not None
        assert spec.engine.prefill.replicas() == FixedReplicas((other,))


def test_kv_cache_events_setting(tmp_path: Path) -> None:
    spec = load(tmp_path, f"engine: {{url: {URL}, kv_events: 'tcp://{{host}}:{{port+1}}'}}")
    assert spec.fleet().kv_events == "tcp://{host}:{port+1}"


def test_limits_of_a_key(tmp_path: Path) -> None:
    keys = "keys: [{name: a, key: {env: K}}, {name: b, key: {env: K}, requests_per_s: 2.5, in_flight: 3}]"
    first, second = (key.limits() for key in load(tmp_path, f"engine: {URL}\n{keys}").keys)
    assert (first.requests_per_s, first.in_flight, first.tokens_per_min) == (math.inf, math.inf, math.inf)
    assert (second.requests_per_s, second.in_flight, second.burst) == (2.5, 3, 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a mapping with the keys of a gateway"),
        (f"engine: {{url: {URL}, kv_events: x}}", "engine.kv_events: expected tcp://"),
        ("routing: random", "engine: expected exactly one of url, file, dns, kubernetes and ray; found none"),
        (f"engine: {{url: {URL}, file: x}}", "found url and file"),
        (f"engine: {{url: {URL}, prefill: {{}}}}", "engine.prefill: expected one of 'url', 'file'"),
        (f"engine: {{prefill: {URL}}}", "engine: expected exactly one of url, file, dns"),
        ("engine: ftp://x", "engine: expected a URL such as http://host:port"),
        (f"engine: {URL}\nrouting: best", "gateway.yaml:2: routing: expected one of random"),
        (f"engine: {URL}\nroute: x", "gateway.yaml:2: unknown key 'route'; did you mean 'routing'?"),
        (f"engine: {URL}\nlimits:\n  body: 3", "gateway.yaml:3: limits: unknown key 'body'"),
        (f"engine: {URL}\nlimits:\n  body_s: 0", "gateway.yaml:3: limits.body_s: expected a number greater"),
        (f"engine: {URL}\nkeys: [{{name: a, key: sk-secret}}]", "keys[0].key: expected {env: NAME}"),
        (
            f"engine: {URL}\nkeys: [{{name: a, key: {{env: K}}}}, {{name: a, key: {{env: L}}}}]",
            "'a' more than once",
        ),
        (f"engine: {URL}\nkeys: [{{name: anyone, key: {{env: K}}}}]", "which metrics use"),
        ("engine: {url: http://u:p@x}", "without user and password"),
        (f"engine: {URL}\nopentelemetry: http://x", "opentelemetry: expected true or false"),
    ],
)
def test_mistakes_are_reported_with_their_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_missing_replicas_are_a_mistake() -> None:
    for prefill in ((), (URL,)):
        with pytest.raises(SettingError, match="--engine URL"):
            load_gateway(None, (), prefill)


def test_missing_key_and_duplicate_key_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("sk-secret")
    two = f"engine: {URL}\nkeys: [{{name: a, key: {{file: k}}}}, {{name: b, key: {{file: %s}}}}]"
    with pytest.raises(SettingError, match="cannot be read"):
        make_gateway(load(tmp_path, two % "missing"))
    with pytest.raises(SettingError, match="found one under two names") as caught:
        make_gateway(load(tmp_path, two % "k"))
    assert "sk-secret" not in str(caught.value)


def test_port_in_use_is_reported() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
    with pytest.raises(SettingError, match="cannot listen"):
        listen("no such host", 1)
