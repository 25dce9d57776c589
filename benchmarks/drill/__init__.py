"""The fault drill: random small pipelines, random faults, and an exact comparison of what came out.

`python -m benchmarks.drill` runs it. A scenario is drawn from a seed, played with real processes, held
against what must come out, and made smaller where it fails.
"""
