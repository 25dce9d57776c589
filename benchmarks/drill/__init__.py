"""The fault drill: random small pipelines, random faults, and an exact comparison of the output.

`python -m benchmarks.drill` runs it. A scenario is drawn from a seed, played with real processes, and its
output compared; a failing scenario is made smaller.
"""
