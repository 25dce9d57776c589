"""The fault drill: random small pipelines, random faults, and an exact comparison of the output."""
