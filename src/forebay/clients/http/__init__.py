"""An HTTP/1.1 client for engines, made for many short streams: neither task nor queue from socket to reader.

`client` and `server` keep connections, `connection` parses and bounds what comes, `readers` receive answers.
May import value modules at the root only.
"""
