"""`python -m benchmarks interplay`: how a stream's settings affect the engine, and the reverse."""
