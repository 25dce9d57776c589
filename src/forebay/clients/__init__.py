"""Clients of what Forebay runs on: engines over HTTP, the API servers of Kubernetes and Ray Serve, and S3.

May import value modules at the root only.
"""
