from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.settings import (
    MAX_SECRET_BYTES,
    OTEL_BATCHES,
    SecretRef,
    chosen_java,
    load_settings,
    otel_queue_spans,
    otel_signals,
    ray_token,
    read_secret,
    trusted_owners,
)

SECRET = "sk-very-secret"


def test_home_is_the_cache_by_default() -> None:
    assert load_settings({"HOME": "/h"}).home == Path("/h/.cache/forebay")
    assert load_settings({"HOME": "/h", "XDG_CACHE_HOME": "/c"}).home == Path("/c/forebay")
    assert load_settings({"HOME": "/h", "XDG_CACHE_HOME": ""}).home == Path("/h/.cache/forebay")
    assert load_settings({"XDG_CACHE_HOME": "/c", "FOREBAY_HOME": "/f"}).home == Path("/f")


def test_all_files_are_below_the_home() -> None:
    settings = load_settings({"FOREBAY_HOME": "/f"})
    assert {path.parent for path in (settings.engine_env, settings.models, settings.run)} == {Path("/f")}


def test_the_python_of_the_engine() -> None:
    assert load_settings({"HOME": "/h"}).python == Path(sys.executable)
    assert load_settings({"HOME": "/h", "FOREBAY_PYTHON": "/p/python"}).python == Path("/p/python")


def test_file_permissions_for_others() -> None:
    assert load_settings({"HOME": "/h"}).umask == 0o077
    assert load_settings({"HOME": "/h", "FOREBAY_UMASK": "027"}).umask == 0o027
    for wrong in ("7", "0x1f", "777", "002", "-77", "0o77", "88 "):
        with pytest.raises(SettingError, match="FOREBAY_UMASK: expected a value such as 077, 027 or 022"):
            load_settings({"HOME": "/h", "FOREBAY_UMASK": wrong})


def test_a_secret_from_a_variable() -> None:
    assert read_secret(SecretRef(env="KEY"), {"KEY": f" {SECRET}\n"}) == SECRET


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    assert read_secret(SecretRef(file=str(tmp_path / "key")), {}) == SECRET


@pytest.mark.parametrize("environ", [{}, {"KEY": ""}, {"KEY": "  "}])
def test_a_variable_that_is_not_set_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="KEY is not set"):
        read_secret(SecretRef(env="KEY"), environ)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: FileNotFoundError"),
        (b" \n", "is empty"),
        (b"\xff" + SECRET.encode(), "cannot be read: UnicodeDecodeError"),
        (SECRET.encode() + b"x" * MAX_SECRET_BYTES, "is larger than"),
    ],
)
def test_a_bad_file_is_named_and_its_content_is_not(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=problem) as raised:
        read_secret(SecretRef(file=str(path)), {})
    assert str(path) in str(raised.value)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_secret_must_be_somewhere() -> None:
    with pytest.raises(SettingError, match="needs the name"):
        read_secret(SecretRef(), {})


def test_ray_token_is_at_rays_place(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert ray_token(home) is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("usual\n")
    assert ray_token(home) == "usual"
    (tmp_path / "named").write_text("named")
    assert ray_token({**home, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "named")}) == "named"
    assert ray_token({**home, "RAY_AUTH_TOKEN_PATH": "gone", "RAY_AUTH_TOKEN": " given "}) == "given"
    assert ray_token({**home, "RAY_AUTH_TOKEN": "given", "RAY_AUTH_MODE": " Disabled"}) is None
    with pytest.raises(SettingError, match="secret file gone cannot be read"):
        ray_token({**home, "RAY_AUTH_TOKEN_PATH": "gone"})
    (tmp_path / ".ray" / "auth_token").write_text("")
    assert ray_token(home) is None, "an empty file is ignored"


@pytest.mark.parametrize(
    ("environ", "signals"),
    [
        ({}, {"traces", "metrics"}),
        ({"OTEL_SDK_DISABLED": " True", "OTEL_TRACES_EXPORTER": "zipkin"}, set()),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"traces"}),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "otlp"}, {"metrics"}),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, {"traces", "metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, {"traces"}),
    ],
)
def test_opentelemetry_exports(environ: dict[str, str], signals: set[str]) -> None:
    assert otel_signals(environ) == signals


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: expected otlp or none, found 'zipkin'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTLP_PROTOCOL: expected http/protobuf, found 'grpc'"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json",
            },
            "OTLP_METRICS_PROTOCOL: expected http/protobuf, found 'http/json'",
        ),
    ],
)
def test_an_export_that_forebay_does_not_have(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        otel_signals(environ)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", OTEL_BATCHES)
def test_opentelemetry_has_a_queue_and_batches(name: str) -> None:
    assert otel_queue_spans({}) == (2048, 512)
    with pytest.raises(SettingError, match=f"{name}: expected a number from 1 to 9999999, found '0'"):
        otel_queue_spans({name: "0"})


def test_trusted_owners_are_names_or_numbers() -> None:
    assert trusted_owners({}) == frozenset()
    assert trusted_owners({"FOREBAY_TRUST_OWNERS": "root, 1000,"}) == {0, 1000}
    for wrong in ("no such user", "-1", "²"):
        with pytest.raises(SettingError, match="FOREBAY_TRUST_OWNERS: expected users by name or number"):
            trusted_owners({"FOREBAY_TRUST_OWNERS": wrong})


def test_an_empty_home_is_the_one_of_the_user() -> None:
    assert load_settings({"HOME": ""}).home == Path.home() / ".cache" / "forebay"


def test_a_home_of_an_unknown_user_is_reported() -> None:
    for name in ("~nobodyx", "~nobodyx/y"):
        with pytest.raises(SettingError, match=f"^{name} cannot be found: there is no user nobodyx; set F"):
            load_settings({"FOREBAY_HOME": name})
        with pytest.raises(SettingError, match="there is no user nobodyx; set FOREBAY_JAVA_HOME"):
            chosen_java({"FOREBAY_JAVA_HOME": name})


def test_a_user_without_a_home_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    with pytest.raises(SettingError, match="user 987654 has no home directory; set FOREBAY_HOME"):
        load_settings({})
    assert load_settings({"FOREBAY_HOME": "/var/forebay"}).home == Path("/var/forebay")
