"""Clients of engines over HTTP, of the API servers of Kubernetes and Ray Serve, and of S3.

May import value modules at the root only.
"""
