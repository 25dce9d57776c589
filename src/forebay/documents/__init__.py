"""Files that a person writes: a small YAML, checked as a whole against one tree of settings."""
