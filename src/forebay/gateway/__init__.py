"""An OpenAI-compatible front of a fleet: an ASGI application and the server that runs it."""
