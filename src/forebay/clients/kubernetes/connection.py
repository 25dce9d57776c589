"""The API server of a context of the kubeconfig, or of this pod, and its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from forebay.errors import DeployError, SetupError
from forebay.untrusted_text import replace_controls

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

TIMEOUT_S = 30.0


def find_cluster(context: str | None = None) -> SingleConfig:
    """None: the current context of KUBECONFIG, ~/.kube/config or this pod. Reads files. Raises `SetupError`
    without lightkube, `DeployError` without a cluster.
    """
    try:
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ModuleNotFoundError:
        raise SetupError(
            "calling the API server of Kubernetes needs lightkube; pip install 'forebay[kubernetes]'"
        ) from None
    try:
        config = KubeConfig.from_env().get(context)
        if config is None:
            raise ConfigError("it has no current context")
        return config
    except (ConfigError, KeyError, OSError, ValueError) as error:
        raise DeployError(_unusable(error)) from None


def open_client(config: SingleConfig) -> httpx2.Client:
    """Calls block. Raises `DeployError` for keys or certificates that cannot be read."""
    from lightkube.config.client_adapter import Client, ConnectionParams
    from lightkube.core.exceptions import ConfigError

    try:
        return Client(config, ConnectionParams())
    except (ConfigError, OSError, ValueError, AssertionError) as error:
        raise DeployError(_unusable(error)) from None


def open_async_client(config: SingleConfig) -> httpx2.AsyncClient:
    from lightkube.config.client_adapter import AsyncClient, ConnectionParams
    from lightkube.core.exceptions import ConfigError

    try:
        return AsyncClient(config, ConnectionParams())
    except (ConfigError, OSError, ValueError, AssertionError) as error:
        raise DeployError(_unusable(error)) from None


def _unusable(error: Exception) -> str:
    return (
        f"no cluster: the kubeconfig cannot be used: {plain(str(error))}; name another one by KUBECONFIG, or "
        f"another context by --context"
    )


MAX_DETAIL_CHARS = 2000
PASSING = frozenset((429, 500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    code: int
    detail: str

    def text(self, namespace: str) -> str:
        detail = self.detail
        if self.code == 401:
            return (
                f"the cluster rejected your login ({detail}); log in again, or name another context by "
                f"--context"
            )
        if self.code == 403:
            return _forbidden(detail)
        if self.code == 404 and "namespaces" in detail:
            return f"there is no namespace {namespace}: kubectl create namespace {namespace}"
        if self.code == 429:
            return f"refused for now: {detail}; try again"
        return f"the server refuses it ({self.code}): {detail}"


def refusal(code: int, reason: str, body: bytes) -> ApiRefusal:
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ApiRefusal(code, plain(body[:MAX_DETAIL_CHARS].decode("utf-8", "replace")) or reason)
    detail = status.get("message") if isinstance(status, Mapping) else None
    return ApiRefusal(code, plain(str(detail or reason)))


def of_status(status: Any) -> ApiRefusal:
    found = status if isinstance(status, Mapping) else {}
    code = found.get("code")
    return ApiRefusal(code if isinstance(code, int) else 500, plain(str(found.get("message", ""))))


def unreachable(address: str, error: Exception) -> str:
    detail = plain(str(error)) or type(error).__name__
    return (
        f"the API server {address} does not answer: {detail}; is the cluster up, and the context the right "
        f"one (kubectl config current-context)?"
    )


def plain(text: str) -> str:
    return replace_controls(text[:MAX_DETAIL_CHARS])


def _forbidden(detail: str) -> str:
    if "exceeded quota" in detail:
        return f"a quota of the namespace refuses it: {detail}; raise the quota, or ask for less"
    found = re.search(
        r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', detail
    )
    if found is None:
        return f"you may not: {detail}"
    verb, resource, group, namespace = found.groups()
    if "attempting to grant RBAC permissions" in detail:
        return f"you may not give rights that you do not have: {detail}"
    place = f" in the namespace {namespace}" if namespace else ""
    role = f"kubectl create role forebay --verb={verb} --resource={resource}{f'.{group}' if group else ''}"
    return (
        f"the verb {verb} on the resource {resource}{f' of {group}' if group else ''}{place} is missing; "
        f"somebody who may give rights runs: {role}"
    )
