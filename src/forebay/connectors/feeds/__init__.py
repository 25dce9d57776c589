"""Live feeds over server-sent events and WebSockets."""
