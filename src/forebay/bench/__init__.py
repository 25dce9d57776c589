"""Load on a server, a pipeline end to end, and the reports of both.

May import everything but `cli`.
"""
