"""A fleet on Ray Serve and our own gateway with the same scripted replicas and load, in turn.

`load` defines the requests, `client` sends them from its own process, `cluster` is a Ray cluster of one node,
`front` a program on it, `measure` runs the parts, and `figures` makes the report.
"""
