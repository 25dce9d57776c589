"""Runs pipelines and gateways on Kubernetes and Ray: manifests, controllers, drain.

May import `pipeline` and below.
"""
