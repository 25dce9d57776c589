"""Where replicas are, in the settings of a pipeline or a gateway."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from forebay.fields import HttpUrl, LocalPath, Model, wrong
from forebay.fleet.config import KubernetesService, RayApplication, Urls
from forebay.fleet.discovery import DnsReplicas, FileReplicas, FixedReplicas, ReplicaList
from forebay.fleet.endpoints import KubernetesReplicas
from forebay.fleet.ray_replicas import RayReplicas

PLACES = ("url", "file", "dns", "kubernetes", "ray")


class ReplicaSource(Model):
    """Where replicas are: at most one of `url`, `file`, `dns`, `kubernetes` and `ray`."""

    url: Urls = Field((), description="Address of an OpenAI-compatible server, or a list of them.")
    file: LocalPath | None = Field(
        None,
        description="File with the addresses, one per line or a list in YAML or JSON; changes are noticed.",
    )
    dns: HttpUrl | None = Field(
        None, description="`http://NAME:PORT`: every address that the name has, now and later, is a replica."
    )
    kubernetes: KubernetesService | None = Field(
        None,
        description="`[NAMESPACE/]SERVICE[:PORT]`: every endpoint of the Service that is ready is a replica; "
        "the API server tells of changes at once. PORT is the name or number of the pods' port.",
    )
    ray: RayApplication | None = Field(
        None,
        description="`http://HEAD:8265/NAME`: the address of a Ray cluster's dashboard, and a fleet that "
        "`forebay deploy ray` put there; every replica that runs is one.",
    )

    def given(self) -> tuple[str, ...]:
        """The keys that are set."""
        return tuple(key for key in PLACES if getattr(self, key))

    def replicas(self) -> ReplicaList | None:
        """The replicas; None if no key is set. Raises `SettingError`."""
        if self.file is not None:
            return FileReplicas(self.file)
        if self.dns is not None:
            return DnsReplicas(self.dns)
        if self.kubernetes is not None:
            return KubernetesReplicas(self.kubernetes)
        if self.ray is not None:
            return RayReplicas(self.ray)
        return FixedReplicas(self.url) if self.url else None


class PrefillSpec(ReplicaSource):
    """Servers that prefill prompts, and hand over their KV cache to those that decode: exactly one of `url`,
    `file`, `dns`, `kubernetes` and `ray`. A URL or a list of them may stand here in place of the mapping."""

    def model_post_init(self, context: Any, /) -> None:
        if len(self.given()) != 1:
            found = ", ".join(self.given()) or "none"
            raise wrong(f"expected one of 'url', 'file', 'dns', 'kubernetes' and 'ray', found {found}")
