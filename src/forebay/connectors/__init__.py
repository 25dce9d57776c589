"""Where events come from and where results go.

A source is a function `(env, config) -> DataStream` of encoded records (`forebay.codec`: `Event`, or
`DeadLetter` for what cannot be read), a sink a function `(stream, config) -> None` of JSON lines; a config is
a small frozen dataclass. A new connector is one module of that shape. A protocol that has a Python client
and a cursor is a `feed.Feed`, which `polled.polled_source` makes a source of.
"""
