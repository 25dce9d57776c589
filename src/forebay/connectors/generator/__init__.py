"""Generated posts, for demos and tests."""
