"""Ray Serve by its REST interface. Nothing here imports Ray."""
