"""Keys that change in their files count at once; anything that cannot be used leaves the last ones."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.harness.engines import CannedEngine, answer_of, card

from forebay.errors import SettingError
from forebay.gateway import key_reload
from forebay.gateway.key_reload import KeyReload, read_keys
from forebay.gateway.keys import KeyRing
from forebay.gateway.refusal import Refusal
from forebay.gateway.serve import make_gateway
from forebay.gateway.spec import load_gateway

from .conftest import serving, until

SPEC = """
engine: http://127.0.0.1:9
keys:
  - name: a
    key: {{file: a.key}}
    {more}
"""
OTHER = "  - {name: b, key: {file: b.key}}\n"


class Files:
    """A gateway's settings and keys, and what reads them again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gateway.yaml"
        self.write()
        self.secret("a", "sk-1")
        self.secret("b", "sk-b")
        load = partial(load_gateway, self.path)
        spec = load()
        self.ring = KeyRing(read_keys(spec), 0.0)
        self.reload = KeyReload(self.ring, spec, load, self.path)

    def write(self, more: str = "", end: str = "") -> None:
        self.replace(self.path, SPEC.format(more=more) + end)

    def secret(self, name: str, key: str) -> None:
        self.replace(self.path.with_name(f"{name}.key"), key)

    @staticmethod
    def replace(path: Path, text: str) -> None:
        # As Kubernetes does it: another file, so that the same size at the same moment is seen too.
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    def read(self) -> bool:
        keys = self.reload.changed()
        if keys is not None:
            self.reload.apply(keys)
        return keys is not None

    def owner(self, key: str) -> str | None:
        try:
            return self.ring.find({b"authorization": f"Bearer {key}".encode()}).name
        except Refusal:
            return None


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_unchanged_files_are_not_read_again(files: Files) -> None:
    assert not files.read()
    files.write()
    assert files.read()
    assert not files.read()


def test_replaced_key_is_the_only_valid_one(files: Files) -> None:
    files.secret("a", "sk-2")
    assert files.read()
    assert (files.owner("sk-1"), files.owner("sk-2")) == (None, "a")


def test_keys_are_added_and_removed_with_the_settings(files: Files) -> None:
    files.write(end=OTHER)
    assert files.read()
    assert (files.owner("sk-1"), files.owner("sk-b")) == ("a", "b")
    files.secret("b", "sk-c")
    assert files.read()
    assert (files.owner("sk-b"), files.owner("sk-c")) == (None, "b")
    files.write()
    assert files.read()
    assert files.owner("sk-c") is None


def test_usage_of_a_key_is_kept_when_its_limits_change(files: Files) -> None:
    files.write(more="in_flight: 2")
    files.read()
    usage = files.ring.find({b"x-api-key": b"sk-1"}).usage
    with usage.request(0.0):
        files.write(more="in_flight: 1")
        files.read()
        same = files.ring.find({b"x-api-key": b"sk-1"}).usage
        assert same.in_flight == 1
        with pytest.raises(Refusal, match="more than 1 requests at a time"):
            same.request(0.0).__enter__()
    assert same.in_flight == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: [", "gateway.yaml"),
        ("engine: http://127.0.0.1:9\nkeys: []\n", "keys: expected at least one, found none"),
        (SPEC.format(more="burst: 0"), "burst"),
        (SPEC.format(more="") + "  - {name: b, key: {file: missing.key}}\n", "missing.key"),
        (SPEC.format(more="") + "  - {name: b, key: {file: a.key}}\n", "found one under two names"),
    ],
)
def test_invalid_settings_keep_the_last_keys(files: Files, text: str, words: str) -> None:
    files.replace(files.path, text)
    with pytest.raises(SettingError, match=words):
        files.read()
    assert files.owner("sk-1") == "a"
    assert not files.read()
    files.write(end=OTHER)
    assert files.read()
    assert files.owner("sk-b") == "b"


def test_other_changed_settings_are_logged_as_needing_a_restart(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(end="relay: {attempts: 9}\n")
    with caplog.at_level(logging.WARNING, "forebay.gateway"):
        assert files.read()
    assert "other changed settings need a restart" in caplog.text


async def test_running_gateway_accepts_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reload, "LOOK_S", 0.01)
    engine = CannedEngine([card("m")], {"/v1/chat/completions": answer_of("one")})
    await engine.start()
    files = Files(tmp_path)
    files.replace(files.path, files.path.read_text().replace("http://127.0.0.1:9", engine.url))
    load = partial(load_gateway, files.path)
    spec = load()
    gateway = make_gateway(spec)
    reload = asyncio.create_task(KeyReload(gateway.keys, spec, load, files.path).run())
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    try:
        async with serving(spec, gateway=gateway) as served:

            async def status(key: str) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                url = served.url + "/v1/chat/completions"
                async with served.session.post(url, json=body, headers=headers) as response:
                    return response.status

            assert (await status("sk-1"), await status("sk-b")) == (200, 401)
            files.replace(files.path, "no settings")
            files.replace(files.path, SPEC.format(more="").replace("http://127.0.0.1:9", engine.url) + OTHER)
            await until(lambda: "b" in gateway.keys.names)
            assert (await status("sk-1"), await status("sk-b")) == (200, 200)
    finally:
        reload.cancel()
        await asyncio.gather(reload, return_exceptions=True)
        await engine.stop()
