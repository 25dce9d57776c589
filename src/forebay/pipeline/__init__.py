"""A pipeline from its file to its end: settings, checks, process, supervision, resume, state stores.

May import `extend`, `api` and below; Flink only in the process that it starts.
"""
