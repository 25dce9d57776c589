"""Patches the scale of Deployments by the load of pipeline and gateway, without KEDA or a metrics adapter."""
