"""Ray Serve as its REST interface shows it. Nothing here imports Ray."""
