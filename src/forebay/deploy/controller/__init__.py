"""Scales Deployments without KEDA or a metrics adapter: reads how many replicas are needed, and patches the
Deployments' scale.
"""
