"""Scales Deployments by the load of pipeline and gateway, without KEDA or a metrics adapter."""
