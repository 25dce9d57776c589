"""Replicas that follow a stream on a real control plane of Kubernetes; its pods are local processes."""
