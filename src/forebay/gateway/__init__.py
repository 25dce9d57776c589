"""The OpenAI-compatible front of a fleet: an ASGI application and its server.

May import `fleet` and below; no Flink.
"""
