"""How many replicas a workload needs, computed or simulated before any is started.

May import `fleet` and below.
"""
