"""The API server of Kubernetes: the connection, what it refuses and why, collections that are watched."""
