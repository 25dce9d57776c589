"""What replicas publish of their KV caches, so that what they evict is forgotten here too."""
