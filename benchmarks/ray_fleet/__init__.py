"""A fleet on Ray Serve and our own gateway before the same scripted replicas: the same load, in turn.

`load` says what is asked and when, `client` asks it as a process of its own, `cluster` is a Ray cluster of
one node, `front` a program on it, `measure` goes through the parts of a run, and `figures` makes the report
of what was seen.
"""
