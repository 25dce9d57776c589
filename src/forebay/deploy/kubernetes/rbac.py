"""The rights of each component at the API server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.manifest import Manifest, manifest

GROUP = "rbac.authorization.k8s.io"
Rule = dict[str, Any]
ENDPOINTS: Rule = {
    "apiGroups": ["discovery.k8s.io"],
    "resources": ["endpointslices"],
    "verbs": ["list", "watch"],
}


def role(
    deployment: Deployment, component: str, rules: Sequence[Rule], why: str, *, account: str | None = None
) -> Iterator[Manifest]:
    """A Role with these rules, bound to the component's service account, or to its `account`."""
    name, labels = deployment.name(account or component), deployment.labels(component)
    version = f"{GROUP}/v1"
    yield manifest(
        component, version, "Role", name, {"rules": list(rules)}, labels=labels, notes={("rules",): why}
    )
    binding = {
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name}],
    }
    yield manifest(component, version, "RoleBinding", name, binding, labels=labels)
