"""Checks at the start whether servers can prefill for others: their models, one token, and a KV cache."""

from __future__ import annotations

import asyncio
from typing import Literal

from forebay.engine.replica import NO_LIST, HttpReplica
from forebay.errors import EngineError, SettingError
from forebay.fleet.disaggregated import prefill_of
from forebay.fleet.discovery import ReplicaList
from forebay.records import Message, Request
from forebay.settings import SecretRef, read_secret

CHECK_S = 5.0
"""The longest time for one answer."""
ASKED = "What is the weather like?"
FIX = "start vLLM there with a KV connector (--kv-transfer-config)"

Verdict = tuple[Literal["fit", "wrong", "away"], str]
"""Whether a server can prefill, and why not."""


def check_prefill(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    """Return warnings about the servers in `replicas`, asked as `chat` or for a completion; blocks for at
    most three times `CHECK_S`.

    Raises `SettingError`, naming the setting `key`, if all servers answer and none can prefill for `model`.
    Warnings are about servers that do not answer, unsuitable servers if there are suitable ones, and an empty
    or unreadable list. Nothing is asked if the API key is not available here.
    """
    return asyncio.run(_check(replicas, model, chat=chat, api_key=api_key, key=key))


async def describe_prefill(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    """As `check_prefill`, but returns the error's text, too, for what starts in any case."""
    try:
        return await _check(replicas, model, chat=chat, api_key=api_key, key=key)
    except SettingError as error:
        return str(error)


async def _check(
    replicas: ReplicaList, model: str, *, chat: bool, api_key: SecretRef | None, key: str
) -> str:
    try:
        secret = None if api_key is None else read_secret(api_key)
    except SettingError:
        return ""
    verdicts = await _ask_all(replicas, _asked(model, chat=chat), secret)
    wrong = "; ".join(why for verdict, why in verdicts if verdict == "wrong")
    away = "; ".join(why for verdict, why in verdicts if verdict == "away")
    if any(verdict == "fit" for verdict, _ in verdicts):
        return f"{key}: {wrong}" if wrong else ""
    if not away:
        raise SettingError(f"{key}: {wrong}. Or leave {key} out: the others then do both")
    why = f"{away}; {wrong}" if wrong else away
    return f"{key}: prompts are prefilled where they are decoded until one of its servers answers: {why}"


def _asked(model: str, *, chat: bool) -> Request:
    messages = (Message("user", ASKED),) if chat else ()
    return prefill_of(
        Request("forebay-prefill-check", model, messages=messages, prompt=None if chat else ASKED)
    )


async def _ask_all(replicas: ReplicaList, asked: Request, secret: str | None) -> list[Verdict]:
    try:
        urls = await asyncio.wait_for(replicas.urls(), CHECK_S)
    except SettingError as error:
        return [("away", str(error))]
    except asyncio.TimeoutError:
        return [("away", f"the list of replicas was not read within {CHECK_S:g} s")]
    if not urls:
        return [("away", "there is none yet")]
    return await asyncio.gather(*(_ask(url, asked, secret) for url in urls))


async def _ask(url: str, asked: Request, secret: str | None) -> Verdict:
    # vLLM returns the location of a KV cache only with answers in one piece.
    replica = HttpReplica(url, api_key=secret, stream=False)
    try:
        try:
            names = [served.name for served in await replica.list_models(CHECK_S)]
        except NO_LIST:
            names = [asked.model]
        if asked.model not in names:
            serves = ", ".join(names) or "nothing"
            return "wrong", f"{url} serves {serves}, not {asked.model!r}: start that one there"
        answer = await replica.engine.complete(asked, timeout_s=CHECK_S)
    except EngineError as error:
        return "away" if error.retryable else "wrong", str(error)
    finally:
        await replica.close()
    if answer.kv_transfer is None:
        return "wrong", f"{url} gives no KV cache to take over, so that prompts are prefilled twice: {FIX}"
    return "fit", ""
