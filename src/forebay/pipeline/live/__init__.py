"""The live page of a run: contents, server, and lines for a terminal."""
