"""The API server of Kubernetes: connection, refusals and their reasons, watched collections."""
