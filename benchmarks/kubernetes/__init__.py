"""Replicas that follow a stream on a real Kubernetes control plane; pods are local processes."""
