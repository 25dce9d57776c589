"""A pipeline measured end to end: what each event felt, from its own time to its committed result."""
