"""A pipeline on Kubernetes: settings, manifests, and applying them to a cluster."""

from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.load import load_deployment, warnings_of
from forebay.deploy.kubernetes.manifest import Manifest, to_yaml
from forebay.deploy.kubernetes.render import render
from forebay.deploy.kubernetes.settings import DeploymentSpec

__all__ = ["Deployment", "DeploymentSpec", "Manifest", "load_deployment", "render", "to_yaml", "warnings_of"]
