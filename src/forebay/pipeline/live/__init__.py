"""The page of a run, refreshed while it runs: what it shows, its server, and the lines for a terminal."""
