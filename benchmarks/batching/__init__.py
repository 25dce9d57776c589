"""Static against continuous batching, and a burst of short requests: two published measurements."""
