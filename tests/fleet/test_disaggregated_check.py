from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from forebay.errors import SettingError
from forebay.fleet import disaggregated as module
from forebay.fleet.disaggregated import check_prefill, describe_prefill
from forebay.fleet.discovery import FixedReplicas
from forebay.settings import SecretRef
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Faults, Fixed

FIT = ReplicaScript(models=("m",), delay=Fixed(0.0))
OTHER = replace(FIT, models=("x", "y"))
NO_CACHE = replace(FIT, gives_kv_cache=False)
AWAY = "http://127.0.0.1:9"


def checked(
    *scripts: ReplicaScript, away: bool = False, chat: bool = True, key: SecretRef | None = None
) -> tuple[str, list[str]]:
    with ExitStack() as opened:
        urls = [opened.enter_context(ReplicaThread(script)).url for script in scripts]
        more = [AWAY] if away else []
        replicas = FixedReplicas((*urls, *more))
        return check_prefill(replicas, "m", chat=chat, api_key=key, key="engine.prefill"), urls


@pytest.mark.parametrize("chat", [True, False])
def test_capable_servers_are_not_reported(chat: bool) -> None:
    assert checked(FIT, FIT, chat=chat)[0] == ""
    assert checked(FIT, away=True)[0] == "", "replicas come and go"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (OTHER, r"^engine\.prefill: http://\S+ serves x, y, not 'm': start that one there\. Or leave engine"),
        (NO_CACHE, r"^engine\.prefill: http://\S+ gives no KV cache to take over.*--kv-transfer-config"),
        (replace(FIT, api_key="secret"), r"^engine\.prefill: http://\S+ answered 401: .*check the API key"),
        (replace(FIT, faults=Faults((("400", 1.0),))), r"^engine\.prefill: http://\S+ answered 400"),
    ],
)
def test_no_capable_server_is_a_setting_error(script: ReplicaScript, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        checked(script)


def test_incapable_servers_are_reported_the_same_in_every_start() -> None:
    with ReplicaThread(OTHER) as replica:
        replicas = FixedReplicas((replica.url,))
        text = asyncio.run(describe_prefill(replicas, "m", chat=False, api_key=None, key="engine.prefill"))
    assert text.startswith(f"engine.prefill: {replica.url} serves x, y, not 'm'")


def test_incapable_server_is_no_error_while_another_does_not_answer() -> None:
    text, (wrong,) = checked(OTHER, away=True)
    assert text.startswith("engine.prefill: prompts are prefilled where they are decoded until one of its")
    assert AWAY in text
    assert f"{wrong} serves x, y, not 'm'" in text


@pytest.mark.parametrize("script", [OTHER, NO_CACHE])
def test_one_incapable_server_of_two_is_reported(script: ReplicaScript) -> None:
    text, (_, wrong) = checked(FIT, script)
    assert text.startswith(f"engine.prefill: {wrong} ")


def test_silent_servers_are_reported_and_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = checked(away=True)
    assert text.startswith("engine.prefill: prompts are prefilled where they are decoded until one of its")
    assert AWAY in text
    monkeypatch.setattr(module, "CHECK_S", 0.05)
    for script in (replace(FIT, delay=Fixed(60.0)), replace(FIT, faults=Faults((("503", 1.0),)))):
        assert "until one of its servers answers" in checked(script)[0]


class Told:
    def __init__(self, error: SettingError | None = None, *, silent: bool = False) -> None:
        self._error = error
        self._silent = silent

    async def urls(self) -> tuple[str, ...]:
        if self._silent:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error
        return ()

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (Told(), "there is none yet"),
        (Told(SettingError("the name p cannot be resolved")), "the name p cannot be resolved"),
        (Told(silent=True), "the list of replicas was not read within 0.05 s"),
    ],
)
def test_list_without_any_known_server_is_reported(
    replicas: Told, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0.05)
    text = check_prefill(replicas, "m", chat=True, api_key=None, key="engine.prefill")
    assert text == (
        "engine.prefill: prompts are prefilled where they are decoded until one of its servers answers: "
        + words
    )


def test_server_without_a_model_list_is_checked_for_a_kv_cache() -> None:
    silent = replace(FIT, absent=("/v1/models",))
    assert checked(silent)[0] == ""
    with pytest.raises(SettingError, match="gives no KV cache"):
        checked(replace(silent, gives_kv_cache=False))


def test_nothing_is_checked_without_the_api_key() -> None:
    assert checked(OTHER, key=SecretRef(env="NO_SUCH_KEY_HERE"))[0] == ""
