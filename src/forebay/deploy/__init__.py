"""Runs pipelines on Kubernetes and Ray."""
