"""Errors of the API server: the reason, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.untrusted_text import replace_controls

MAX_SAID = 2000
PASSING = frozenset((429, 500, 502, 503, 504))
"""The server is overloaded, starting, or stopping: the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response: its status and the server's message."""

    code: int
    said: str

    def text(self, namespace: str) -> str:
        said = self.said
        if self.code == 401:
            return (
                f"the cluster rejected your login ({said}); log in again, or name another context by "
                f"--context"
            )
        if self.code == 403:
            return _forbidden(said)
        if self.code == 404 and "namespaces" in said:
            return f"there is no namespace {namespace}: kubectl create namespace {namespace}"
        if self.code == 429:
            return f"refused for now: {said}; try again"
        return f"the server refuses it ({self.code}): {said}"


def refusal(code: int, reason: str, body: bytes) -> Refusal:
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Refusal(code, plain(body[:MAX_SAID].decode("utf-8", "replace")) or reason)
    said = status.get("message") if isinstance(status, Mapping) else None
    return Refusal(code, plain(str(said or reason)))


def of_status(status: Any) -> Refusal:
    """The refusal in a Status object, which a watch sends as its last event."""
    found = status if isinstance(status, Mapping) else {}
    code = found.get("code")
    return Refusal(code if isinstance(code, int) else 500, plain(str(found.get("message", ""))))


def unreachable(address: str, error: Exception) -> str:
    said = plain(str(error)) or type(error).__name__
    return (
        f"the API server {address} does not answer: {said}; is the cluster up, and the context the right one "
        f"(kubectl config current-context)?"
    )


def plain(text: str) -> str:
    """Text from outside, for a message of one line or some."""
    return replace_controls(text[:MAX_SAID])


def _forbidden(said: str) -> str:
    if "exceeded quota" in said:
        return f"a quota of the namespace refuses it: {said}; raise the quota, or ask for less"
    found = re.search(
        r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', said
    )
    if found is None:
        return f"you may not: {said}"
    verb, resource, group, namespace = found.groups()
    if "attempting to grant RBAC permissions" in said:
        return f"you may not give rights that you do not have: {said}"
    place = f" in the namespace {namespace}" if namespace else ""
    role = f"kubectl create role forebay --verb={verb} --resource={resource}{f'.{group}' if group else ''}"
    return (
        f"the verb {verb} on the resource {resource}{f' of {group}' if group else ''}{place} is missing; "
        f"somebody who may give rights runs: {role}"
    )
