"""A fleet on a Ray cluster: each replica of Ray Serve owns one engine."""
