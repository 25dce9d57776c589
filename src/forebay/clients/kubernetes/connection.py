"""Connect to the API server of a context of the kubeconfig, or of the cluster of this pod.

lightkube handles the kubeconfig, its contexts, keys, certificates and log-in programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.clients.kubernetes.refusal import plain
from forebay.errors import DeployError, SetupError

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import SingleConfig

TIMEOUT_S = 30.0


def find_cluster(context: str | None = None) -> SingleConfig:
    """The cluster of `context`, by default the current one of KUBECONFIG, ~/.kube/config or this pod; reads
    files.

    Raises `SetupError` if lightkube is missing, and `DeployError` if there is no cluster.
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
    """A client whose calls block. Raises `DeployError` for keys or certificates that cannot be read."""
    from lightkube.config.client_adapter import Client, ConnectionParams
    from lightkube.core.exceptions import ConfigError

    try:
        return Client(config, ConnectionParams())
    except (ConfigError, OSError, ValueError, AssertionError) as error:
        raise DeployError(_unusable(error)) from None


def open_async_client(config: SingleConfig) -> httpx2.AsyncClient:
    """A client for the running event loop. Raises `DeployError` like `open_client`."""
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
