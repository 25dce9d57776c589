"""A fleet on Ray Serve and our own gateway with the same scripted replicas and load, in turn."""
