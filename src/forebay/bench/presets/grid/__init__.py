"""`forebay bench grid`: models × parallelism × arrival × output tail."""
