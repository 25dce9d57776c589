"""`python -m benchmarks grid`: models × parallelism × arrival × output tail."""
