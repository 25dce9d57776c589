"""The OpenAI-compatible front of a fleet: an ASGI application and its server.

May import `planning`, `fleet` and below; no Flink.
"""
