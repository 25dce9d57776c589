"""What a run gave, written down: a document that can be read back, the formats of other tools, a page."""
