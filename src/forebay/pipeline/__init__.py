"""A run of a pipeline: its checks, its process with Flink, supervision, resume, and state stores.

May import `extend` and below.
"""
